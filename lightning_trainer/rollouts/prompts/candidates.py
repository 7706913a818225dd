"""The candidates of a search for better prompts, its events, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.rollouts.attempt import AttemptEnded
from lightning_trainer.rollouts.prompts.client import Spent


def named(versions: Mapping[str, PromptVersion]) -> str:
    """Return versions as ``planner@v3, writer@v1``."""
    return ", ".join(f"{name}@v{one.version}" for name, one in versions.items())


@dataclass(frozen=True)
class Candidate:
    """A version of each prompt, with the rewards that they earned."""

    versions: Mapping[str, PromptVersion]
    validation: Mapping[str, float]
    """Rewards by task."""
    parent: int | None = None
    """The parent's index; None for the versions that the program had."""
    attempts: dict[str, AttemptEnded] = field(default_factory=dict)
    """Attempts at feedback tasks, by task."""

    @property
    def name(self) -> str:
        """Return the versions as ``planner@v3, writer@v1``."""
        return named(self.versions)

    @property
    def mean(self) -> float:
        """Return the mean reward at the validation tasks."""
        return fmean(self.validation.values())


@dataclass(frozen=True, slots=True)
class CandidateTried:
    """A candidate has been tried: at a few feedback tasks if it was not better there, else at the validation tasks."""

    candidate: str
    parent: str | None
    made_by: str | None
    """The kind of the proposer of its new text; None for the versions that the program had."""
    mean: float
    tasks: int
    failed: int
    """Attempts at these tasks that failed or got no reward; they count in the mean."""
    kept: bool
    attempts_left: int


@dataclass(frozen=True)
class Optimized:
    """The result of an optimization."""

    base: Candidate
    best: Candidate
    """The best candidate at the validation tasks; it was chosen by them, so its mean there is too high."""
    candidates: Sequence[Candidate]
    attempts: int
    """How many attempts were made."""
    held_out: tuple[Mapping[str, float], Mapping[str, float]] | None = None
    """Rewards of ``base`` and ``best`` by held-out task; neither was chosen by these. None: there are no such tasks."""
    spent: Spent = field(default_factory=Spent)
    """Calls and tokens of the model that writes texts, including those of searches that this one continued."""
