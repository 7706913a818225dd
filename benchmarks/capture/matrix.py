"""Frameworks x sync, async, stream x one rollout, many at once: what the engine answered against what was captured.

The engine's own log is the truth: which agent and which rollout asked, which ids were read and sampled. A call is
captured when a span in the store has its response id; identity is resolved up the tree of spans as the daemon does it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from lightning_instrumentation import semconv

from benchmarks.capture import scenarios
from benchmarks.capture.programs.matrix_agent import LOADS
from benchmarks.capture.sizes import Sizes
from benchmarks.common import stored
from benchmarks.common.processes import Child
from benchmarks.common.rows import Row, at_least
from benchmarks.common.servers.daemon import STORE
from lightning_trainer.ingest.ancestry import Identity, key_of, resolve_identities, unique
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import Call, Span

SECTION = "matrix"


@dataclass(slots=True)
class Cell:
    made: int = 0
    captured: int = 0
    doubled: int = 0
    agent: int = 0
    rollout: int = 0
    with_ids: int = 0
    """Calls whose protocol has a place for token ids."""
    ids: int = 0
    confused: Counter[str] = field(default_factory=Counter)

    def complete(self) -> bool:
        right = self.captured == self.agent == self.rollout == self.made and self.ids == self.with_ids
        return self.made > 0 and right and not self.doubled

    def __str__(self) -> str:
        ids = f"{self.ids}/{self.with_ids}" if self.with_ids else "no ids in the protocol"
        doubled = f", {self.doubled} doubled" if self.doubled else ""
        return (
            f"captured {self.captured}, right agent {self.agent}, right rollout {self.rollout}, "
            f"ids equal {ids}{doubled}"
        )


def run(sizes: Sizes, folder: Path, frameworks: Sequence[str] | None = None) -> list[Row]:
    known = scenarios.names()
    unknown = set(frameworks or ()) - set(known)
    if unknown:
        raise SystemExit(f"no scenario {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    truth: list[dict[str, Any]] = []
    told: dict[str, dict[str, Any]] = {}
    environment = {"LIGHTNING_SPOOL_DIR": str(folder / "spool"), "OPENAI_API_KEY": "unused"}
    with (
        Child("common.servers.engine") as engine,
        Child(
            "common.servers.daemon", "--folder", folder, environment=environment, errors=folder / "daemon.log"
        ) as daemon,
    ):
        url, endpoint = engine.read()["url"], daemon.read()["url"]
        for name in frameworks or known:
            arguments = ("--scenario", name, "--engine", url, "--endpoint", endpoint, "--rollouts", sizes.rollouts)
            with Child(
                "capture.programs.matrix_agent", *arguments, environment=environment, errors=folder / f"{name}.log"
            ) as agent:
                try:
                    told[name] = agent.read()
                except RuntimeError as error:
                    told[name] = {"failed": {}, "modes": [], "crashed": str(error)[-300:]}
            truth += httpx.get(f"{url}/truth", timeout=60).json()
        daemon.stop()
    cells = _compare(truth, stored.spans(folder / STORE))
    rows = [row for name in told for row in _rows(name, told[name], cells)]
    complete, all_cells = sum(row.met is True for row in rows), sum(row.met is not None for row in rows)
    note = f"{sizes.rollouts} concurrent rollouts in one process"
    return [*rows, at_least(SECTION, "complete cells", complete, all_cells, "cells", note)]


def _compare(truth: Sequence[Mapping[str, Any]], spans: Sequence[Span]) -> dict[str, Cell]:
    known = unique(spans)
    identities = resolve_identities(known)
    by_response: dict[str, list[Span]] = {}
    for span in known.values():
        response_id = span.attributes.get(semconv.RESPONSE_ID)
        if isinstance(response_id, str):
            by_response.setdefault(response_id, []).append(span)
    calls = {call.response_id: call for call in read_spans(spans).calls}
    cells: dict[str, Cell] = {}
    for made in truth:
        cell = cells.setdefault(str(made["rollout"]).rpartition("/")[0], Cell())
        captured = by_response.get(made["response_id"], [])
        who = identities[key_of(captured[0])] if captured else None
        _count(cell, made, captured, who, calls.get(made["response_id"]))
    return cells


def _count(cell: Cell, made: Mapping[str, Any], captured: list[Span], who: Identity | None, call: Call | None) -> None:
    cell.made += 1
    cell.captured += bool(captured)
    cell.doubled += max(0, len(captured) - 1)
    if who is not None:
        cell.agent += who.agent == made["agent"]
        cell.rollout += who.rollout_id == made["rollout"]
        if who.agent != made["agent"]:
            cell.confused[f"{made['agent']} taken for {who.agent}"] += 1
    if made["prompt_ids"] is not None:
        cell.with_ids += 1
        equal = call is not None and (list(call.prompt_ids), list(call.response_ids)) == (
            made["prompt_ids"],
            made["response_ids"],
        )
        cell.ids += equal


def _rows(name: str, told: Mapping[str, Any], cells: Mapping[str, Cell]) -> list[Row]:
    if "absent" in told:
        return [Row(SECTION, name, None, note=f"not installed: {told['absent']}")]
    if "crashed" in told:
        return [Row(SECTION, name, 0, "cells", "complete", False, f"crashed: {told['crashed']}")]
    rows = []
    for mode in told["modes"]:
        for load in LOADS:
            place = f"{name}/{mode}/{load}"
            cell = cells.get(place, Cell())
            errors = told["failed"].get(place, [])
            notes = [str(cell), *(f"{count}x {what}" for what, count in cell.confused.most_common(2))]
            notes += [f"{len(errors)} rollouts failed: {errors[0]}"] if errors else []
            met = cell.complete() and not errors
            rows.append(Row(SECTION, place, cell.made, "calls", "complete", met, "; ".join(notes)))
    return rows
