"""Turns hundreds of lines of a failed engine's log into one sentence that says what to do."""

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Known:
    pattern: re.Pattern[str]
    sentence: Callable[[re.Match[str]], str]


_TOO_LONG = re.compile(r"max seq len \((\d+)\), \(?([\d.]+) ([KMG]iB) KV cache is needed")
_NO_MEMORY = re.compile(r"(?:DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|MemoryError)")

_KNOWN_ON_GPUS = (
    _Known(
        _TOO_LONG,
        lambda m: (
            f"the GPU's memory is too small: one request of engine.max_model_len = {m[1]} tokens needs {m[2]} {m[3]} "
            "beside the weights; lower it, or raise engine.gpu_memory_utilization or engine.tensor_parallel_size"
        ),
    ),
    _Known(
        _NO_MEMORY,
        lambda _: (
            "not enough memory: raise engine.tensor_parallel_size, lower engine.max_num_seqs, or end other processes"
        ),
    ),
)
"""Failures for which other settings help than on a CPU."""
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
        _TOO_LONG,
        lambda m: (
            f"engine.kv_cache_gib is too small: one request of engine.max_model_len = {m[1]} tokens needs "
            f"{m[2]} {m[3]}; raise the one or lower the other"
        ),
    ),
    _Known(
        _NO_MEMORY,
        lambda _: "not enough memory: lower engine.kv_cache_gib or engine.max_num_seqs, or end other processes",
    ),
    _Known(
        re.compile(r"invalid (tool call|reasoning) parser: (\S+)"),
        lambda m: f"engine.{m[1].replace(' ', '_')}_parser = {m[2]!r} is not one that vLLM knows",
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


def explain(log: str, announced: str | None, exit_status: int | None, *, on_gpus: bool = False) -> str:
    """Return why the engine failed to start or ended.

    Args:
        log: output of its processes, or the end of it.
        announced: the host's own last message, if any.
        exit_status: of the host; negative for a signal.
        on_gpus: whether it was given GPUs.
    """
    text = "\n".join(_PREFIX.sub("", line) for line in log.splitlines())
    for known in (*_KNOWN_ON_GPUS, *_KNOWN) if on_gpus else _KNOWN:
        if found := known.pattern.search(text):
            return known.sentence(found)
    if exit_status == -signal.SIGKILL:
        way = "end other processes" if on_gpus else "lower engine.kv_cache_gib"
        return f"it was killed (SIGKILL), as the system does when the machine's memory runs out: {way}"
    if announced is not None and not any(part in announced for part in _CONSEQUENCES):
        return announced
    causes = [found for found in _ERROR_LINE.finditer(text) if not any(part in found[2] for part in _CONSEQUENCES)]
    if causes:
        return f"{causes[0][1].rpartition('.')[2]}: {causes[0][2].strip()}"
    return announced or f"it ended with status {exit_status} and said nothing"
