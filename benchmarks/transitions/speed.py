"""Time and memory from spans to a batch, at growing numbers of spans.

Every size is measured three times, in processes of its own, so that every run pays for fresh memory. The figure is the
median; the goal is judged at it, and the note has all three. Growth compares runs that followed each other, at three
moments, and is judged at the median of the three. Seconds are CPU-seconds of ``read_spans`` and ``build_batch``
together. Memory is how much a span adds to the peak of the process over the spans themselves.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row, at_most
from benchmarks.transitions import workloads
from benchmarks.transitions.workloads import Shape

_TIMES, _AROUND = 3, 3
"""Runs of each size, and moments at which growth is measured: odd, so that the median is one of them. Then the runs of
100,000 spans before a million's, and as many after."""
_SPANS_OF_ONE = 300
"""Spans in each rollout of the workload ``many``."""


def run(sizes: Sequence[int]) -> list[Row]:
    rows: list[Row] = []
    for kind in ("one", "many"):
        took: dict[int, float] = {}
        for spans in sizes:
            measured, all_s = median_of_runs(kind, spans)
            took[spans] = measured["seconds"]
            what = f"{spans:,} spans in {'one rollout' if kind == 'one' else f'rollouts of {_SPANS_OF_ONE}'}"
            note = (
                f"{spans / measured['seconds']:,.0f} spans/s; {measured['calls']:,} calls, "
                f"{measured['tokens']:,} tokens, {measured['samples']:,} samples; "
                f"{measured['bytes'] / 1024:.1f} KiB a span at the peak; runs of {_listed(all_s)} s"
            )
            if kind == "one" and spans == 100_000:
                rows.append(at_most("speed", what, measured["seconds"], 1.5, "CPU-s", note, "median"))
            else:
                rows.append(Row("speed", what, measured["seconds"], "CPU-s", note=note))
        if 1_000_000 in took and 100_000 in took:
            rows.append(_grown(kind, [_growth(kind) for _ in range(_TIMES)]))
    for depth in sorted({min(sizes), min(max(sizes), 100_000)}):
        measured, all_s = median_of_runs("chain", depth)
        note = f"runs of {_listed(all_s)} s"
        rows.append(Row("speed", f"a chain {depth:,} spans deep", measured["seconds"], "CPU-s", note=note))
    return rows


def median_of_runs(kind: str, spans: int) -> tuple[dict, list[float]]:
    """Measure a workload ``_TIMES`` times; return the run with the median CPU-seconds, and the seconds of all runs."""
    runs = [in_a_process(kind, spans) for _ in range(_TIMES)]
    ordered = sorted(runs, key=lambda measured: measured["seconds"])
    return ordered[len(ordered) // 2], [measured["seconds"] for measured in runs]


def _grown(kind: str, growths: Sequence[float]) -> Row:
    note = (
        f"a million over the mean of {2 * _AROUND} of 100,000 around it, at {len(growths)} moments: {_listed(growths)}"
    )
    what = f"1,000,000 over 100,000 spans, {kind}"
    return at_most("speed", what, statistics.median(growths), 12, "x", note, f"median of {len(growths)}")


def _listed(figures: Sequence[float]) -> str:
    return ", ".join(f"{figure:.2f}" for figure in figures)


def _growth(kind: str) -> float:
    """Return a million spans' time over that of 100,000, as the machine is at this moment.

    A long run gets its mean speed, and the cheapest of short ones its best moment: compared with each other, they would
    measure how restless the machine is.
    """
    before = [in_a_process(kind, 100_000)["seconds"] for _ in range(_AROUND)]
    million = in_a_process(kind, 1_000_000)["seconds"]
    after = [in_a_process(kind, 100_000)["seconds"] for _ in range(_AROUND)]
    return million / statistics.mean(before + after)


def in_a_process(kind: str, spans: int) -> dict:
    """Measure a workload (``one``, ``many``, or ``chain``) of ``spans`` spans."""
    code = f"from benchmarks.transitions.speed import measure; measure({kind!r}, {spans})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=_environment())
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def measure(kind: str, spans: int) -> None:
    """Print one measurement as JSON."""
    from lightning_trainer.ingest.reading import read_spans
    from lightning_trainer.samples.batches import build_batch

    made = _spans(kind, spans)
    policy, before = workloads.policy(), _peak_bytes()
    began = time.process_time()
    reading = read_spans(made)
    build = build_batch(reading.calls, reading.attempts, reading.evaluations, policy, step=1)
    seconds = time.process_time() - began
    assert build.batch is not None, build.problems
    print(
        json.dumps(
            {
                "seconds": seconds,
                "bytes": (_peak_bytes() - before) / len(made),
                "calls": len(reading.calls),
                "tokens": sum(len(call.prompt_ids) + len(call.response_ids) for call in reading.calls),
                "samples": len(build.batch.samples),
            }
        )
    )


def _spans(kind: str, spans: int) -> list:
    if kind == "chain":
        return workloads.chain(spans)
    if kind == "one":
        # A group has at least two members; the other one is as small as it can be.
        small = workloads.rollout("small", "g0", 4, Shape(turns=1), workloads.Random(1), reward=0.0)
        return workloads.rollout("large", "g0", spans - 4, Shape(), workloads.Random(0), reward=1.0) + small
    members = 8
    groups = max(1, spans // (members * _SPANS_OF_ONE))
    made = []
    for group in range(groups):
        own = spans // groups + (group < spans % groups)
        made += workloads.group_of(own, members, Shape(), seed=group)
    return made


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
