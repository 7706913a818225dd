"""Ends everything that a host left behind, and nothing else: the processes of its own group."""

import contextlib
import os
import signal
import time

import psutil

_POLL_S = 0.05


def end_group(group: int, grace_s: float) -> None:
    """End a process group: send SIGTERM, and kill what is left after ``grace_s``. Blocks: call it from a thread.

    Python's resource trackers are killed last, after another ``grace_s``: they ignore SIGTERM, and remove the shared
    memory that killed processes leave.
    """
    _signal(_members(group), signal.SIGTERM)
    if not _gone(group, grace_s):
        _signal([process for process in _members(group) if not _is_tracker(process)], signal.SIGKILL)
        if not _gone(group, grace_s):
            _signal(_members(group), signal.SIGKILL)


def _members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _gone(group: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
