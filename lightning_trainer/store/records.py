"""What the store gives back that is not part of the common vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lightning_trainer.types import StepReport


class StepState(StrEnum):
    """Life of a step: assigned -> trained or skipped. A crash may train an already trained step again, to the same
    weights; its report is then replaced."""

    ASSIGNED = "assigned"
    TRAINED = "trained"
    SKIPPED = "skipped"
    """Its attempts gave nothing to train on; the ledger says why."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as the store knows it, without its batch (which is large)."""

    step: int
    state: StepState
    attempt_ids: tuple[str, ...]
    report: StepReport | None
    """None until it has been trained."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What was measured of its attempts when it was assigned; kept for skipped steps too."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """After ``after_step`` was recorded, the weights became those of ``version`` again."""

    after_step: int
    version: int
    at_ns: int
