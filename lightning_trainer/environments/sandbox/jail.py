"""The jail: the rights that a Linux process gives up before it runs untrusted code.

Its own namespaces (mount, process, network, IPC, host name; for an unprivileged user also a user namespace), a root
with read-only system folders and one small writable folder in memory, no capabilities, no new privileges, limits on
memory, processes, files, and time, and, if libseccomp is available, a system call filter. Standard library only.

Source: namespaces(7), user_namespaces(7), pivot_root(2), capabilities(7), seccomp(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import select
import signal
import sys
from typing import Any

HOME = "/work"
_LIBC: Any = ctypes.CDLL(None, use_errno=True)

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 4, 38, 24
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_DEVICES = ("null", "zero", "urandom")
_FORBIDDEN = (
    "acct", "add_key", "bpf", "chroot", "clone3", "delete_module", "fanotify_init", "finit_module", "fsconfig",
    "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm",
    "iopl", "kexec_file_load", "kexec_load", "keyctl", "memfd_create", "memfd_secret", "mount", "mount_setattr",
    "move_mount", "msgget", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open", "personality",
    "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "reboot", "request_key", "semget",
    "setns", "shmat", "shmget", "socket", "socketpair", "swapoff", "swapon", "syslog", "umount2", "unshare",
    "userfaultfd", "vmsplice",
)  # fmt: skip
"""System calls that computations do not need: kernel exploits start with them, or they hold memory that no limit
sees."""


def enter(prefixes: list[str], limits: dict[str, int]) -> None:
    """Lock this process in, and return in a child that is the first process of its process namespace.

    Raises:
        OSError: the kernel does not allow it; the message says which step failed.
    """
    privileged = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    spaces = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    _done(_LIBC.unshare(spaces if privileged else spaces | _NEWUSER), "unshare namespaces")
    if not privileged:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    child = os.fork()
    if child:
        _wait_for(child)
    _done(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PDEATHSIG")
    os.setsid()  # a process group crosses process namespaces: kill(0, ...) would reach out
    _new_root(prefixes, limits["disk_mib"])
    _limit(limits)
    _drop(privileged)
    _done(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PDEATHSIG")  # changing the user has cleared it
    _filter()


def _wait_for(child: int) -> None:
    """Wait in the outer process for the child and end the way it did, or end as soon as the process that writes to us
    is gone; the kernel then ends the child."""
    os.close(1)
    poll = select.poll()
    poll.register(0, 0)  # a hang-up is always reported
    poll.register(os.pidfd_open(child), select.POLLIN)
    if [descriptor for descriptor, _ in poll.poll()] == [0]:
        os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _new_root(prefixes: list[str], disk_mib: int) -> None:
    root = "/tmp"  # exists everywhere; the new root is mounted over it
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=0755")
    # A single file system for everything that code can write, with limits on bytes and files.
    os.mkdir(f"{root}{HOME}")
    for folder in dict.fromkeys((*_SYSTEM, *prefixes)):
        if os.path.islink(folder):
            os.makedirs(os.path.dirname(f"{root}{folder}"), mode=0o755, exist_ok=True)
            os.symlink(os.readlink(folder), f"{root}{folder}")
        elif os.path.isdir(folder) and not os.path.isdir(f"{root}{folder}"):
            os.makedirs(f"{root}{folder}", mode=0o755)
            _mount(folder, f"{root}{folder}", None, _BIND | _REC)
            _protect(f"{root}{folder}")
    os.mkdir(f"{root}/dev")
    for device in _DEVICES:
        open(f"{root}/dev/{device}", "w").close()
        _mount(f"/dev/{device}", f"{root}/dev/{device}", None, _BIND)
    os.mkdir(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _mount("tmpfs", f"{root}{HOME}", "tmpfs", _NOSUID | _NODEV, f"size={disk_mib}m,nr_inodes=1024,mode=0777")
    os.symlink("work", f"{root}/tmp")
    os.chdir(root)
    _done(_LIBC.syscall(_pivot_root_number(), b".", b"."), "pivot_root")
    _done(_LIBC.umount2(b".", 2), "detach the old root")  # MNT_DETACH
    os.chdir("/")
    _mount("none", "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(HOME)


def _protect(top: str) -> None:
    """Make a mount and each one below it read-only, one by one, since a remount changes only a single mount."""
    for point, kept in _mounts().items():
        if point == top or point.startswith(f"{top}/"):
            try:
                _mount("none", point, None, _BIND | _REMOUNT | _RDONLY | _NOSUID | kept)
            except OSError as error:
                # A mount that another one hides, or that is below a closed folder, is not found, nor can code find it.
                if point == top or error.errno == errno.EPERM:
                    raise


def _mounts() -> dict[str, int]:
    """Return, by mount point, the flags to keep: in a user namespace they may not be removed."""
    kept: dict[str, int] = {}
    with open("/proc/self/mountinfo", "rb") as file:
        for line in os.fsdecode(file.read()).rstrip("\n").split("\n"):
            fields = line.split(" ")
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
            for option in fields[5].split(","):  # of all mounts at this point: the file does not say which is on top
                kept[point] = kept.get(point, 0) | {"nodev": _NODEV, "noexec": _NOEXEC}.get(option, 0)
    return kept


def _limit(limits: dict[str, int]) -> None:
    memory = limits["memory_mib"] << 20
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_FSIZE, limits["disk_mib"] << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _drop(privileged: bool) -> None:
    """Give up every right; root becomes an otherwise unused user."""
    for capability in range(64):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if privileged:
        stranger = 1_000_000_000 + int.from_bytes(os.urandom(3), "big")
        os.setgroups([])
        os.setresgid(stranger, stranger, stranger)
        os.setresuid(stranger, stranger, stranger)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _done(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "drop capabilities")
    _done(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _filter() -> None:
    """Block the system calls of ``_FORBIDDEN``; the other protections do not depend on this."""
    with contextlib.suppress(OSError, AttributeError):
        library: Any = ctypes.CDLL("libseccomp.so.2")
        library.seccomp_init.restype = ctypes.c_void_p
        rules = ctypes.c_void_p(library.seccomp_init(0x7FFF0000))  # allow the rest
        for name in _FORBIDDEN:
            number = library.seccomp_syscall_resolve_name(name.encode())
            # clone3's arguments cannot be inspected, and C libraries fall back to clone if it does not exist.
            refused = 38 if name == "clone3" else 1
            if number >= 0:
                library.seccomp_rule_add(rules, ctypes.c_uint32(0x00050000 | refused), number, 0)
        library.seccomp_load(rules)


def _mount(source: str, target: str, kind: str | None, flags: int, more: str = "") -> None:
    answer = _LIBC.mount(
        os.fsencode(source), os.fsencode(target), kind and kind.encode(), ctypes.c_ulong(flags), more.encode() or None
    )
    _done(answer, f"mount {kind or source} on {target}")


def _done(answer: int, what: str) -> None:
    if answer != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _pivot_root_number() -> int:
    numbers = {"x86_64": 155, "aarch64": 41}
    machine = os.uname().machine
    if machine not in numbers or not sys.platform.startswith("linux"):
        raise OSError(f"the sandbox knows x86_64 and aarch64 on Linux, and this is {machine} on {sys.platform}")
    return numbers[machine]
