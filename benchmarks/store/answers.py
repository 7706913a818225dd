"""How soon a daemon is up over a long history, what it uses when idle, and how long each answer takes."""

import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks.common.daemons import policy_process
from benchmarks.common.history import POLICY, History
from benchmarks.common.recorders import Recorder
from benchmarks.common.rows import Row, at_most

_START_S, _IDLE_PER_CENT, _ANSWER_MS = 5.0, 1.0, 200.0
_ASKED = 5
"""Times each question is asked; the longest answer counts."""
_QUESTIONS = (
    "/lightning/status",
    "/lightning/agents",
    "/lightning/policies/{policy}",
    "/lightning/policies/{policy}?before={middle}",
    "/lightning/policies/{policy}/groups?prefix=run/",
    "/lightning/policies/{policy}/groups?prefix=run/step-5&after=run/step-50/t3",
    "/lightning/policies/{policy}/lost_groups?prefix=run/step-5/",
    "/lightning/policies/{policy}/groups?prefix=run/&taken_after={last}&taken_until={steps}",
    "/lightning/policies/{policy}/versions",
    "/lightning/policies/{policy}/versions?before={middle}",
    "/lightning/policies/{policy}/metrics",
    "/lightning/policies/{policy}/metrics?after={middle}",
    "/lightning/feedback",
)
_OF_ONE_THAT_RECORDS = ("/lightning/status", "/lightning/agents", "/lightning/feedback", "/lightning/runs", "/metrics")


def measure(folder: Path, history: History, *, idle_s: float) -> list[Row]:
    rows = _recording(folder, history, idle_s)
    with policy_process(history.state_dir) as (url, process, start_s):
        note = f"{_cpu_s(process):.1f} s of CPU"
        rows.append(at_most("store", "start of a policy's share, to the first answer", start_s, _START_S, "s", note))
        settled_s = _settle(process, idle_s)  # the first look, the first census and the metrics of the newest steps
        rows.append(
            Row("store", "CPU of all that, until it is idle", _cpu_s(process), "s", note=f"{settled_s:.0f} s in all")
        )
        rows.append(at_most("store", "idle CPU, a policy collecting", _idle(process, idle_s), _IDLE_PER_CENT, "%"))
        places = {"policy": POLICY, "middle": max(1, history.steps // 2), "steps": history.steps}
        places["last"] = history.steps - 1
        for question in _QUESTIONS:
            rows.append(_answer(url, question.format(**places), process))
        rows.append(Row("store", "resident memory, a policy collecting", process.memory_info().rss / 2**20, "MiB"))
    return rows


def _recording(folder: Path, history: History, idle_s: float) -> list[Row]:
    """Measure the real daemon, without a policy."""
    daemon = Recorder(folder / "recorder", {"retention_size": "none"}, state_dir=history.state_dir)
    try:
        start_s, process = daemon.start(), daemon.process
        start_cpu_s = daemon.cpu_s()
        _settle(process, idle_s)
        idle = _idle(process, idle_s)
        answers = [_answer(daemon.url, path, process, ", recording") for path in _OF_ONE_THAT_RECORDS]
    finally:
        daemon.stop()
    return [
        at_most("store", "start of a daemon that records, to the first answer", start_s, _START_S, "s"),
        Row("store", "CPU of that, most of it Python's imports", start_cpu_s, "s"),
        at_most("store", "idle CPU, recording", idle, _IDLE_PER_CENT, "%"),
        *answers,
    ]


def _answer(url: str, path: str, process: psutil.Process, of: str = "") -> Row:
    before = _cpu_s(process)
    slowest = max(_answer_s(url + path) for _ in range(_ASKED))
    cpu_ms = 1000 * (_cpu_s(process) - before) / _ASKED
    return at_most("store", f"GET {path}{of}", 1000 * slowest, _ANSWER_MS, "ms", f"{cpu_ms:.0f} ms of CPU on average")


def _answer_s(url: str) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as response:
        response.read()
    return time.monotonic() - began


def _idle(process: psutil.Process, seconds: float) -> float:
    """Return the CPU that a process takes, in per cent of one core."""
    before = _cpu_s(process)
    time.sleep(seconds)
    return 100 * (_cpu_s(process) - before) / seconds


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _settle(process: psutil.Process, idle_s: float) -> float:
    """Wait until the work of a start is done, at most two minutes; return the seconds that it took."""
    began = time.monotonic()
    while _idle(process, min(3.0, idle_s)) > 5.0 and time.monotonic() - began < 120:
        pass
    return time.monotonic() - began
