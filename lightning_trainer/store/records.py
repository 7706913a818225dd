"""Records returned by the store that are not part of the common vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lightning_trainer.types import StepReport


class StepState(StrEnum):
    """The life of a step: assigned -> trained or skipped. After a crash, a trained step may be repeated, with the same
    weights as the result; its report is then replaced."""

    ASSIGNED = "assigned"
    TRAINED = "trained"
    SKIPPED = "skipped"
    """Its attempts contained nothing to train on; the ledger says why."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step in the store, without its batch (which is large)."""

    step: int
    state: StepState
    attempt_ids: tuple[str, ...]
    report: StepReport | None
    """None until the step has been trained."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Measurements of its attempts from when the step was assigned; kept for skipped steps too."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """A return to earlier weights: after ``after_step`` was recorded, training went back to those of ``version``."""

    after_step: int
    version: int
    at_ns: int
