"""CPU that an instrumentation adds to a model call, delivery to a receiver included, compared with its peers.

``ids-asked``: the program itself asks for token ids and logprobs, so every instrumentation sees the same large answer.
``ids-added``: the program asks for neither, and ours adds them (for a host that the user named): cutting them out
counts as ours, and so does reading the larger answer, which is also measured alone and reported.
``text``: an ordinary call to a host that the user did not name; no ids.

There are two figures. The goal is judged at quiet moments, the 5th percentile of the calls (see ``alternating``): other
work on the machine (memory, caches, a neighbor on the same core) makes a call more expensive and never cheaper, so this
is the instrumentation's own work and the least that a user will see. The other is the median of the differences, which
is what a call costs more on this machine as it is.
"""

import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.capture.alternating import take_turns
from benchmarks.capture.programs.agent import CASES, QUESTION
from benchmarks.capture.sizes import Sizes
from benchmarks.common.peers import peers_python
from benchmarks.common.processes import Child
from benchmarks.common.rows import Row, at_most

SECTION = "cost"
_GOALS = {"ids-asked": 0.4, "ids-added": 0.4, "text": 0.2}
_QUIET, _MEDIAN = "5th percentile", "median"
_TITLES = {
    "ids-asked": "2,000 + 256 ids with logprobs, asked by the program",
    "ids-added": "2,000 + 256 ids with logprobs, added by us",
    "text": "plain text",
}


def run(sizes: Sizes, folder: Path) -> list[Row]:
    peers, missing = peers_python() if sizes.peers else (None, "left out at this size")
    rows = []
    with Child("common.servers.engine") as engine, Child("common.servers.engine") as receiver:
        urls = engine.read()["url"], f"{receiver.read()['url']}/ok"
        for case in _GOALS:
            rows.extend(_case(case, sizes, urls, folder, peers))
    if peers is None:
        rows.append(Row(SECTION, "peers", None, note=missing))
    return rows


def _case(case: str, sizes: Sizes, urls: tuple[str, str], folder: Path, peers: Path | None) -> list[Row]:
    # The program without instrumentation runs in both environments: each is compared with its own.
    theirs = ["none", "openinference", "official"] if peers and case != "ids-added" else []
    programs = [(name, sys.executable) for name in ("none", "ours")] + [(name, str(peers)) for name in theirs]
    with ExitStack() as stack:
        children = [stack.enter_context(_agent(name, python, case, urls, folder)) for name, python in programs]
        for child in children:
            child.read()
        measured = take_turns(children, calls=sizes.cost_calls, blocks=sizes.cost_blocks)
        stats = [child.ask("end") for child in children]
    found = list(zip([name for name, _ in programs], measured, stats, strict=True))
    (_, without, _), (_, ours, counted), *others = found
    note = f"the call itself {without.quiet_cpu_ms:.2f} ms; of what is added delivery {ours.delivery_cpu_ms:.2f} ms"
    if case == "ids-added":
        note += f"; reading the larger answer {larger_answer_ms(urls[0], sizes.larger_answers):.3f} ms"
    if counted["dropped"] or counted["failed"] or not counted["created"]:
        note += f"; NOT CAPTURED: {counted}"
    added = ours.quiet_cpu_ms - without.quiet_cpu_ms
    title = f"{_TITLES[case]}: ours"
    rows = [
        at_most(SECTION, f"{title}, {_QUIET}", added, _GOALS[case], "ms CPU/call", note, _QUIET),
        _row(f"{title}, {_MEDIAN}", ours.added_cpu_ms, f"the call itself {without.cpu_ms:.2f} ms"),
    ]
    for name, one, counted in others[1:]:
        without = others[0][1]
        note = "captures no token ids" if counted["created"] else "made no span at all: it does not know this client"
        rows += [
            _row(f"{_TITLES[case]}: {name}, {_QUIET}", one.quiet_cpu_ms - without.quiet_cpu_ms, note),
            _row(f"{_TITLES[case]}: {name}, {_MEDIAN}", one.added_cpu_ms - without.added_cpu_ms, note),
        ]
    return rows


def _row(what: str, figure: float, note: str) -> Row:
    return Row(SECTION, what, figure, "ms CPU/call", note=note)


def _agent(name: str, python: str, case: str, urls: tuple[str, str], folder: Path) -> Child:
    engine, telemetry = urls
    return Child(
        "capture.programs.agent",
        *("--instrument", name, "--engine", engine, "--telemetry", telemetry, "--case", case),
        python=python,
        environment={"LIGHTNING_SPOOL_DIR": str(folder / "spool")},
        errors=folder / f"agent-{name}.log",
    )


def larger_answer_ms(engine: str, answers: int) -> float:
    """Return the CPU a call that ids and logprobs cost a thread that only reads the bytes.

    No instrumentation that asks for ids can avoid it.
    """
    model, extra = CASES["ids-asked"]
    small = {"model": model, "messages": QUESTION, "max_tokens": 256}
    with httpx.Client(headers={"accept-encoding": "identity"}) as client:

        def cpu_s(body: dict) -> float:
            began_s = time.thread_time()
            client.post(f"{engine}/v1/chat/completions", json=body).raise_for_status()
            return time.thread_time() - began_s

        # One after the other, so that other load on the machine falls on both.
        added_s = [cpu_s({**small, **extra}) - cpu_s(small) for _ in range(answers)]
    return statistics.median(added_s[answers // 10 :]) * 1e3
