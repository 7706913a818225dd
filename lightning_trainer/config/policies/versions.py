"""``versions`` and ``guard`` of a policy: which weights are kept and what an old version costs while it is asked for,
and what a new one has to show before it is served."""

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from lightning_trainer.config.sections import Section


class VersionsConfig(Section):
    """A version is kept when any of the rules keeps it. What is not kept can still be rolled back to, by repeating
    the recorded steps from a checkpoint; it is only not served as ``POLICY@vN``."""

    keep_last: int = Field(default=2, ge=1)
    """The newest, the one that is served included."""
    keep_every: int | None = Field(default=None, ge=1)
    """Also every version whose number this divides."""
    keep_best: int = Field(default=1, ge=0)
    """Also those with the highest held-out scores."""
    idle_timeout_s: float = Field(default=300.0, gt=0)
    """An engine that was started for an old version ends when nobody has called it for so long."""


class GuardConfig(Section):
    """A new version goes live only if its held-out score is at least the live version's less ``tolerance``."""

    command: tuple[str, ...] = Field(min_length=1)
    """Evaluates the model ``LIGHTNING_CANDIDATE`` of the gateway at ``LIGHTNING_ENDPOINT``/v1. The last line of its
    output is the score; more is better."""
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    timeout_s: float = Field(default=600.0, gt=0)
    """Of a run of the command; one that takes longer gives no score."""
    working_dir: Path = Path(".")
    """Where it is run."""


class CanaryConfig(Section):
    """``[policy.canary]``: a new version answers a share of live rollouts before it answers all of them."""

    share: float = Field(default=0.1, gt=0, le=0.5)
    """Of live rollouts, chosen by a hash of their ids, that a candidate answers."""
    shadow: bool = False
    """The live version answers all calls, and the candidate is asked the same alongside it; judges score both. For
    agents without side effects."""
    shadow_at_once: int = Field(default=4, ge=1, le=256)
    """Calls that the candidate is asked so at a time; one that comes when they all go on is left out, and counted."""
    by: Literal["rollout", "task", "group"] = "rollout"
    """What stays together: all calls of a rollout, of a task (a session, say), or of a group."""
    tolerance: float = Field(default=0.03, ge=0, le=1)
    """How much worse than the live version a candidate may be, in rewards on ``range``'s scale from 0 to 1."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """That a candidate as good as the live version is not refused, and one that is worse by more than the tolerance is
    not promoted, however often it is looked at."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest reward of an attempt; what is beyond counts as the end."""
    max_rollouts: int = Field(default=2000, ge=10)
    """Rewards of the candidate's rollouts after which it is stopped, undecided."""
    timeout_s: float = Field(default=86_400.0, gt=0)
    """After which it is stopped, undecided."""
    guard_margin: float = Field(default=0.1, gt=0, le=1)
    """A candidate is stopped at once when it is certain that it fails, errs in tools, refuses, or is long or slow in a
    share of its rollouts that is larger by so much."""

    @field_validator("range")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not (math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1]):
            raise ValueError("write the lowest and the highest reward, like [0, 1]")
        return value
