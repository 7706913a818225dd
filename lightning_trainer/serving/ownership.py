"""Folders outside the state directory have their owner in their name, so a later run can recognize orphans.

A process id alone may be reused by another process; with the start time it is unique. The start time is the kernel's,
counted from the start of the machine: a time since 1970 would change when the clock is set. The namespace keeps runs in
two containers that share a folder from judging each other's ids.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_TAG = re.compile(r"(?P<pid>\d+)\.(?P<started>\d+)\.(?P<namespace>\d+)$")
_STAT = Path("/proc/self/stat")


def owner_tag() -> str:
    """Return this process as ``pid.start.namespace``: the suffix of every folder that it owns."""
    return f"{os.getpid()}.{_started(os.getpid())}.{_namespace()}"


def remove_orphans(root: Path, prefix: str) -> list[Path]:
    """Remove the folders below ``root`` whose owner is gone, and return them."""
    return _removed(path for path in _folders(root, prefix) if _is_orphan(path.name))


def remove_earlier(root: Path, prefix: str) -> list[Path]:
    """Remove the folders below ``root`` that another process owned, and return them; only this process may use ``root``
    now. A container that starts again has another namespace, where ``remove_orphans`` cannot tell that the old owner is
    gone."""
    return _removed(
        path
        for path in _folders(root, prefix)
        if _TAG.search(path.name) is not None and not path.name.endswith(f"-{owner_tag()}")
    )


def _removed(paths: Iterable[Path]) -> list[Path]:
    removed = list(paths)
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    return removed


def _folders(root: Path, prefix: str) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in sorted(root.iterdir()) if path.name.startswith(prefix) and path.is_dir())


def _is_orphan(name: str) -> bool:
    tag = _TAG.search(name)
    if tag is None or int(tag["namespace"]) != _namespace():
        return False
    try:
        return _started(int(tag["pid"])) != int(tag["started"])
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return True
    except (psutil.AccessDenied, PermissionError):
        return False


def _started(pid: int) -> int:
    """Return when a process started: on Linux in the kernel's ticks (proc(5), field 22 of stat), else in tenths of a
    second.
    """
    if not _STAT.exists():
        return round(psutil.Process(pid).create_time() * 10)
    after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
    return int(after_name.split()[19])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
