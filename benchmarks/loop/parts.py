"""Where the time of a profile went, by kind of operation, read from a trace in Chrome's format.

PyTorch writes such traces and Perfetto (``ui.perfetto.dev``) or ``chrome://tracing`` opens them. An operation's own
time is what no operation below it accounts for; what lies between operations is Python and waiting.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BETWEEN = "Python and waiting"

_PARTS: Mapping[str, Sequence[str]] = {
    "optimizer": ("Optimizer.", "_foreach", "_fused_adam", "clip_grad"),
    "attention": ("attention", "attn", "Attention", "flash", "reshape_and_cache"),
    "loss head": ("PairLogProbs", "DrawnLogProbs", "DrawnEntropy", "log_softmax", "logsumexp"),
    "sampling and log-probabilities": ("sampl", "topk", "sort", "exponential", "multinomial", "argmax", "gumbel"),
    "products": (
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::linear",
        "aten::matmul",
        "onednn",
        "packed_linear",
        "gemm",
    ),
    "copies": ("aten::copy_", "aten::_to_copy", "aten::cat", "aten::clone", "aten::contiguous"),
}
"""Parts of operations' names; an operation belongs to the first that fits."""
_OTHER = "element by element"
_BELOW = ("optimizer", "attention", "loss head", "sampling and log-probabilities")
"""Everything below an operation of these belongs to them as well."""


def seconds_of_parts(trace: Path) -> dict[str, float]:
    """Return seconds by part, of the thread that was busy longest, from the first operation to the last.

    Raises:
        ValueError: the trace has no operations.
    """
    threads: dict[Any, list[dict]] = {}
    for event in _events(trace):
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    if not threads:
        raise ValueError(f"{trace} has no operations")
    found = max((_of_thread(events) for events in threads.values()), key=lambda parts: sum(parts.values()))
    events = [event for events in threads.values() for event in events]
    whole = max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events)
    found[BETWEEN] = max(0.0, whole / 1e6 - sum(found.values()))
    return dict(sorted(found.items(), key=lambda part: -part[1]))


def _events(trace: Path) -> Iterator[dict]:
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
                yield event


def _of_thread(events: Iterable[dict]) -> dict[str, float]:
    seconds: defaultdict[str, float] = defaultdict(float)
    stack: list[tuple[float, str]] = []
    """Ends of the operations that are still open, and the part that each belongs to."""
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        above = stack[-1][1] if stack else ""
        part = above if above in _BELOW else _part(event["name"])
        seconds[part] += event["dur"] / 1e6
        if stack:
            seconds[above] -= event["dur"] / 1e6
        stack.append((event["ts"] + event["dur"], part))
    return seconds


def _part(name: str) -> str:
    fits = (part for part, words in _PARTS.items() if any(word in name for word in words))
    return next(fits, _OTHER)
