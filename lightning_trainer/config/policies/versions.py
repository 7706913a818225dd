"""``versions`` and ``guard`` of a policy: which weights are kept and what an old version costs while it is asked for,
and what a new one has to show before it is served."""

from pathlib import Path

from pydantic import Field

from lightning_trainer.config.section import Section


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
