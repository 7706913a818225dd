"""Compares the engine's answers with the store: each call once, with the same ids and log-probabilities.

The engine's own log is the truth. A call is found in the store as the trainer finds it (``read_spans``), by its
response id, to which the gateway's translations give another prefix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.frameworks.ways import COLUMNS, agent_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import Call, Span

COMPLETE = "complete"
_FLOAT32 = 1e-6
"""The precision, in nats, with which log-probabilities are stored."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One framework tried in one way."""

    made: int
    """Calls that the engine answered."""
    wrong: tuple[str, ...]
    """A sentence for every call that is not in the store as the engine answered it."""

    @property
    def complete(self) -> bool:
        return self.made > 0 and not self.wrong

    def __str__(self) -> str:
        if self.complete:
            return f"{COMPLETE} ({self.made} calls)" if self.made > 1 else f"{COMPLETE} (1 call)"
        if not self.made:
            return f"**no call**: {self.wrong[0] if self.wrong else 'the engine was not asked'}"
        return f"**{len(self.wrong)} of {self.made} wrong**: {self.wrong[0]}"


def cells_of(
    name: str, truth: Sequence[Mapping[str, Any]], spans: Sequence[Span], failed: Mapping[str, str]
) -> dict[str, Cell]:
    """Return a framework's cells, by column.

    Args:
        truth: the engine's log.
        failed: columns whose part of the program failed, and why.
    """
    calls: dict[str, list[Call]] = {}
    for call in read_spans(spans).calls:
        calls.setdefault(_number(call.response_id), []).append(call)
    cells = {}
    for column in COLUMNS:
        made = [one for one in truth if one["rollout"] == f"{name}/{column}"]
        wrong = [why for one in made if (why := _wrong(one, calls, agent_of(column))) is not None]
        if column in failed:
            wrong.append(f"the program failed: {failed[column]}")
        if made and "streamed" in column and not any(one.get("streamed") for one in made):
            wrong.append("nothing was streamed")
        cells[column] = Cell(len(made), tuple(wrong))
    return cells


def _wrong(made: Mapping[str, Any], calls: Mapping[str, Sequence[Call]], agent: str) -> str | None:
    found = calls.get(_number(made["response_id"]), ())
    if len(found) != 1:
        return "not captured" if not found else f"captured {len(found)} times"
    (call,) = found
    if not call.complete:
        return "captured as interrupted"
    if (list(call.prompt_ids), list(call.response_ids)) != (made["prompt_ids"], made["response_ids"]):
        return "other token ids" if call.response_ids else "no token ids"
    if call.behavior_logprobs is None:
        return "no log-probabilities"
    if any(abs(one - other) > _FLOAT32 for one, other in zip(call.behavior_logprobs, made["logprobs"], strict=True)):
        return "other log-probabilities"
    if call.agent != agent:
        return f"agent {call.agent!r} instead of {agent!r}"
    return None


def _number(response_id: object) -> str:
    return str(response_id).rpartition("-")[2].rpartition("_")[2]
