"""``versions``, ``guard`` and ``canary`` of a policy: which weights are kept and for how long an old version is served,
and what a new one has to show before it is served."""

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from lightning_trainer.config.sections import Section


class VersionsConfig(Section):
    """``versions``: which versions are kept, and so served as ``POLICY@vN``. A version is kept if any of the rules
    keeps it; the others can still be rolled back to, by repeating the recorded steps from a checkpoint."""

    keep_last: int = Field(default=2, ge=1)
    """How many of the newest are kept, including the one that is served."""
    keep_every: int | None = Field(default=None, ge=1)
    """Also every version whose number this divides."""
    keep_best: int = Field(default=1, ge=0)
    """Also this many with the best held-out scores, each score lowered by two standard errors."""
    idle_timeout_s: float = Field(default=300.0, gt=0)
    """An engine that was started for an old version stops after this long without a call."""


class GuardConfig(Section):
    """``guard``: a version goes live only if its held-out score is at least the live version's minus ``tolerance``."""

    command: tuple[str, ...] = Field(min_length=1)
    """Evaluates the model ``LIGHTNING_CANDIDATE`` of the gateway at ``LIGHTNING_ENDPOINT``/v1. The last line of its
    output is the score; higher is better."""
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    timeout_s: float = Field(default=600.0, gt=0)
    """Limit of one run of the command; a run that takes longer gives no score."""
    working_dir: Path = Path(".")
    """The folder in which the command runs."""


class CanaryConfig(Section):
    """``[policy.canary]``: a new version answers a share of live rollouts before it answers all of them."""

    share: float = Field(default=0.1, gt=0, le=0.5)
    """Share of live rollouts that a candidate answers, chosen by a hash of their ids."""
    shadow: bool = False
    """The live version answers all calls, and the candidate is asked the same alongside it; judges score both. For
    agents without side effects."""
    shadow_at_once: int = Field(default=4, ge=1, le=256)
    """Most shadow calls in flight; a call beyond that is not shadowed, but counted."""
    by: Literal["rollout", "task", "group"] = "rollout"
    """What stays together: all calls of a rollout, of a task (a session, say), or of a group."""
    tolerance: float = Field(default=0.03, ge=0, le=1)
    """How much worse than the live version a candidate may be, in rewards on ``range``'s scale from 0 to 1."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Probability that a candidate as good as the live version is not refused, and that one which is worse by more than
    the tolerance is not promoted, however often they are compared."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest reward of an attempt; a reward outside counts as the nearer of the two."""
    max_rollouts: int = Field(default=2000, ge=10)
    """After this many rewards of its rollouts a candidate is stopped, undecided."""
    timeout_s: float = Field(default=86_400.0, gt=0)
    """After this long a candidate is stopped, undecided."""
    guard_margin: float = Field(default=0.1, gt=0, le=1)
    """A candidate is stopped at once when it is certain that the share of its rollouts that fail, have tool errors,
    refuse, or are long or slow exceeds the live version's share by this much."""

    @field_validator("range")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not (math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1]):
            raise ValueError("write the lowest and the highest reward, like [0, 1]")
        return value
