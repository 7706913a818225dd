"""The client on Windows, as far as this machine can stand in for it: what Python lacks there is taken away first.

Not stood in for: how Windows itself starts and ends processes.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from lightning_instrumentation import semconv

pytestmark = pytest.mark.process

WINDOWS = """
import asyncio, concurrent.futures.process, ctypes, http.client, importlib.metadata, logging, multiprocessing.pool
import multiprocessing.util, os, pathlib, platform, shlex, shutil, signal, socket, ssl, subprocess, sys, tempfile, uuid
for name in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None
NO_MORE = {
    os: ("fork", "register_at_fork", "pread", "pwrite", "getuid", "geteuid", "killpg", "getpgrp", "setsid",
         "sched_getaffinity", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "waitid", "sysconf"),
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGXFSZ", "SIGQUIT", "pthread_sigmask"),
    socket: ("AF_UNIX",),
}
for module, names in NO_MORE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
def exec_of_windows(file, arguments, environment):
    # Another process, with the arguments joined as they are; this one ends at once.
    subprocess.Popen(" ".join(arguments), shell=True, env=environment)
    os._exit(0)
os.execvpe = exec_of_windows
"""
AS_WINDOWS = WINDOWS + "sys.platform = 'win32'\n"
"""For code that asks for the platform by name; libraries that do so must be imported before."""
OF_LIGHTNING = "from lightning_trainer.cli import main\nmain()\n"
LAUNCHER = AS_WINDOWS + OF_LIGHTNING


def python(code: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


class TestTheLauncher:
    """Before: ``exec`` started the program beside the shell, which took 0 for its status, and split its arguments."""

    def test_it_waits_for_the_program_and_ends_with_its_status(self, tmp_path) -> None:
        program = "import sys, time; time.sleep(0.5); print(sys.argv[1:]); sys.exit(7)"
        done = python(LAUNCHER, "run", "--", sys.executable, "-c", program, "two words", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (7, "['two words']\n", "")

    def test_the_program_is_another_process_than_the_launcher_and_is_one_attempt(self, receiver, model, tmp_path):
        receiver.model = model
        code = """
            import os, subprocess, sys
            import httpx
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            httpx.post(os.environ["MODEL_URL"] + "/chat/completions", json=body).raise_for_status()
            if "child" not in sys.argv:
                subprocess.run([sys.executable, "-c", os.environ["CODE"], "child"], check=True)
            """
        code = textwrap.dedent(code)
        options = ["--task", "ticket", "--rollout", "r-1", "--endpoint", receiver.url]
        environment = {"MODEL_URL": model.base_url, "CODE": code, "LIGHTNING_SPOOL_DIR": str(tmp_path)}
        done = python(
            LAUNCHER, "run", *options, "--", sys.executable, "-c", code, cwd=tmp_path, **environment
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        roots = [span for span in receiver.spans() if span.attributes.get(semconv.ROLLOUT_ROOT)]
        assert [root.attributes[semconv.TASK_ID] for root in roots] == ["ticket"]
        assert [span.attributes[semconv.ROLLOUT_ID] for span in receiver.spans("chat")] == ["r-1", "r-1"]

    def test_a_command_that_is_not_there_is_one_sentence(self, tmp_path) -> None:
        done = python(LAUNCHER, "run", "--", "no-such-command", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (127, "")
        assert done.stderr.startswith("error: there is no command 'no-such-command' on PATH")

    def test_ctrl_c_is_the_programs_own(self, tmp_path) -> None:
        program = """
            import os, signal, sys, time
            if os.getppid() == int(sys.argv[1]):
                os.kill(os.getppid(), signal.SIGINT)  # a console sends it to both
            time.sleep(0.5)
            sys.exit(3)
            """
        program = [sys.executable, "-c", textwrap.dedent(program)]
        launcher = f"{AS_WINDOWS}sys.argv += ['run', '--', *{program!r}, str(os.getpid())]\n{OF_LIGHTNING}"
        done = python(launcher, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (3, "")
