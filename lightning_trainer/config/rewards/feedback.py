"""``[feedback]``: what becomes of what people and systems say of answers, before it is a reward."""

from typing import Annotated, Literal

from pydantic import Field

from lightning_trainer.config.section import Section
from lightning_trainer.config.store import duration

Source = Annotated[str, Field(min_length=1, max_length=256)]


class FeedbackConfig(Section):
    """Feedback waits, is limited by source and by time, and counts by how far its source has been right."""

    quarantine: Annotated[float, duration("10m")] = Field(default=600.0, ge=0, le=30 * 86400)
    """Seconds that it waits before it counts, so that somebody can take it out, and others can disagree."""
    trusted: tuple[Source, ...] = ()
    """Sources, or patterns of them (``crm-*``), that need no quarantine, have no cap and always weigh 1."""
    verified: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names of rewards from 0 to 1 that are right: what sources say is compared with them."""
    scores: Literal["attempt", "call"] = "attempt"
    """What feedback on a response is a reward of: the attempt that it is part of, or that call alone."""
    min_weight: float = Field(default=0.5, gt=0, le=1000)
    """Of all sources of one answer together; with less, the reward is missing. A source that nobody knows weighs 1."""
    source_per_hour: int = Field(default=120, ge=1)
    """What one source says beyond that does not count."""
    all_per_hour: int = Field(default=20_000, ge=1)
    """What all sources together say beyond that does not count."""
    remember: Annotated[float, duration("90d")] = Field(default=90 * 86400.0, ge=3600)
    """Seconds that it is kept as evidence about its source."""
    settle_every_s: float = Field(default=5.0, gt=0, le=3600)
    """How often it is looked at."""
