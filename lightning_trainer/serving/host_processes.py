"""The processes of an engine's host: how they are ended, all of its own group and nothing else; and why they failed, of
hundreds of lines of log one sentence that says what to do.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

_POLL_S = 0.05


def end_group(group: int, grace_s: float) -> None:
    """Wait until the group is empty; kill what is left after ``grace_s``. Blocks: call it from a thread.

    Python's resource trackers come last: they ignore SIGTERM, and remove the shared memory that killed processes leave.
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


@dataclass(frozen=True, slots=True)
class _Known:
    pattern: re.Pattern[str]
    sentence: Callable[[re.Match[str]], str]


_KNOWN = (
    _Known(
        re.compile(
            r"Available memory on node \S+ \(([\d.]+)/[\d.]+ GiB\).*?less than requested memory for kv \(([\d.]+)"
        ),
        lambda m: (
            f"not enough memory: {m[1]} GiB are free and engine.kv_cache_gib asks for {m[2]}; "
            "lower it, or end other processes"
        ),
    ),
    _Known(
        re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=([\d.]+)"),
        lambda m: (
            f"engine.max_model_len = {m[1]} is more than the {float(m[2]):.0f} that the model was made for; lower it"
        ),
    ),
    _Known(
        re.compile(r"max seq len \((\d+)\), \(?([\d.]+) ([KMG]iB) KV cache is needed"),
        lambda m: (
            f"engine.kv_cache_gib is too small: one request of engine.max_model_len = {m[1]} tokens needs "
            f"{m[2]} {m[3]}; raise the one or lower the other"
        ),
    ),
    _Known(
        re.compile(r"(?:DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|MemoryError)"),
        lambda _: "not enough memory: lower engine.kv_cache_gib or engine.max_num_seqs, or end other processes",
    ),
    _Known(
        re.compile(r"invalid tool call parser: (\S+)"),
        lambda m: f"engine.tool_call_parser = {m[1]!r} is not one that vLLM knows",
    ),
    _Known(
        re.compile(r"error: argument --([\w-]+)[^:]*: (.+)"),
        lambda m: f"vLLM refuses {m[1].replace('-', '_')}: {m[2]}",
    ),
    _Known(
        re.compile(r"ModuleNotFoundError: No module named '([^']+)'"),
        lambda m: f"the engine's interpreter lacks the module {m[1]!r}",
    ),
)
_ERROR_LINE = re.compile(r"\b((?:\w+\.)*\w*(?:Error|Exception)): (\S.*)")
_CONSEQUENCES = ("Engine core initialization failed", "WorkerProc initialization failed", "Worker failed with error")
_PREFIX = re.compile(r"^\([^)]*\)\s*")


def explain(log: str, announced: str | None, exit_status: int | None) -> str:
    """Return why the engine failed to start or ended.

    Args:
        log: output of its processes, or the end of it.
        announced: the host's own last message, if any.
        exit_status: of the host; negative for a signal.
    """
    text = "\n".join(_PREFIX.sub("", line) for line in log.splitlines())
    for known in _KNOWN:
        if found := known.pattern.search(text):
            return known.sentence(found)
    if exit_status == -signal.SIGKILL:
        return "it was killed (SIGKILL), as the system does when memory runs out: lower engine.kv_cache_gib"
    if announced is not None and not any(part in announced for part in _CONSEQUENCES):
        return announced
    causes = [found for found in _ERROR_LINE.finditer(text) if not any(part in found[2] for part in _CONSEQUENCES)]
    if causes:
        return f"{causes[0][1].rpartition('.')[2]}: {causes[0][2].strip()}"
    return announced or f"it ended with status {exit_status} and said nothing"
