"""Run before anything of ours is imported: this interpreter then lacks what Python lacks on Windows.

Not stood in for: how Windows itself starts and ends processes. Whoever runs this sets ``sys.platform``, once
the libraries that ask for it have been imported.
"""

import asyncio  # noqa: F401
import concurrent.futures.process  # noqa: F401
import ctypes  # noqa: F401
import errno
import fcntl
import http.client  # noqa: F401
import importlib.metadata  # noqa: F401
import multiprocessing.pool
import multiprocessing.util  # noqa: F401
import os
import platform  # noqa: F401
import shutil  # noqa: F401
import signal
import socket  # noqa: F401
import ssl  # noqa: F401
import subprocess
import sys
import tempfile  # noqa: F401
import uuid  # noqa: F401

_OF_UNIX = {
    os: (
        *("fork", "register_at_fork", "pread", "pwrite", "getuid", "geteuid", "killpg", "getpgrp", "setsid", "waitid"),
        *("sched_getaffinity", "sysconf", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"),
    ),
    signal: (
        *("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGXFSZ", "SIGQUIT", "pthread_sigmask"),
    ),
}
_flags, _fsync = fcntl.fcntl, os.fsync
_GET_FLAGS = fcntl.F_GETFL


def _exec(file, arguments, environment):
    """Another process, with the arguments joined as they are; this one ends at once."""
    subprocess.Popen(" ".join(arguments), shell=True, env=environment)
    os._exit(0)


def _fsync_of_windows(descriptor):
    if _flags(descriptor, _GET_FLAGS) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    _fsync(descriptor)


for _name in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop"):
    sys.modules[_name] = None  # type: ignore[assignment]
for _module, _names in _OF_UNIX.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
os.execvpe = _exec
os.fsync = _fsync_of_windows
