"""What a runner tells whoever watches it."""

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    stage: str
    """``train``, ``baseline``, or the name given to an evaluation; ``retried`` where it failed and is made again."""
    step: int | None
    task_id: str
    reward: float | None
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class StepEnded:
    step: int
    reward_mean: float | None
    live_version: int | None
    rollout_s: float
    """From the first attempt's start to the last one's end."""
    wait_s: float
    """From then until the daemon had trained and published."""


Event: TypeAlias = AttemptEnded | StepEnded


def as_json(event: Event) -> dict[str, Any]:
    return {"event": type(event).__name__, **asdict(event)}
