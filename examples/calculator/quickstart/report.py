"""``report.json``: everything that the page shows, and nothing that cannot be recomputed from the run's own records.

``None`` is "not measured", never zero. ``format`` grows when a field changes its meaning; unknown fields are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from lightning_trainer.errors import LightningError
from lightning_trainer.report.difference import PairedDifference, wilson_interval
from lightning_trainer.types import LedgerRow, PolicyVersion, Sample

FORMAT = 1


class ReportError(LightningError, ValueError):
    """A file cannot be read as a report of this format."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a run."""

    cores: int
    memory_bytes: int
    cpu_model: str


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Held-out tasks of one wording family."""

    n: int
    successes: int


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Success on the held-out tasks at one time."""

    n: int
    successes: int
    interval: tuple[float, float]
    """95 %, Wilson."""
    by_family: Mapping[str, FamilyResult] = field(default_factory=dict)

    @classmethod
    def of(cls, outcomes: Sequence[bool], families: Sequence[str] | None = None) -> Self:
        """Count outcomes; ``families`` names the wording family of each."""
        by_family: dict[str, FamilyResult] = {}
        for family, success in zip(families, outcomes, strict=True) if families is not None else ():
            known = by_family.get(family, FamilyResult(0, 0))
            by_family[family] = FamilyResult(known.n + 1, known.successes + bool(success))
        successes = sum(map(bool, outcomes))
        return cls(len(outcomes), successes, wilson_interval(successes, len(outcomes)), by_family)

    @property
    def share(self) -> float:
        """Return the share of successes, 0 to 1."""
        return self.successes / self.n


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Success on the held-out tasks before and after training."""

    before: HeldOutResult
    after: HeldOutResult
    difference: PairedDifference | None = None
    """None if the two did not try the same tasks."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step of training."""

    step: int
    reward_mean: float | None
    """Mean over the step's sampled rollouts."""
    groups: int
    groups_trained: int | None = None
    """Groups whose rewards differ; the others carry no gradient."""
    solved_groups: int | None = None
    """Groups in which every rollout succeeded."""
    tokens_trained: int = 0
    tokens_computed: int = 0
    """Positions that went through the model: the nodes of the token tree."""
    tokens_sequential: int = 0
    """Positions that would have gone through the model if prefixes were not shared."""
    policy_version: int | None = None
    """The version that the step produced."""
    seconds: Mapping[str, float | None] = field(default_factory=dict)
    """Wall time in seconds by stage, in order: rollout, build, train, publish."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExampleToken:
    """One token of an example rollout."""

    text: str
    id: int
    mask: bool
    """Whether it was sampled by the policy and trained."""
    logprob: float | None = None
    """Behavior log-probability, nats."""
    advantage: float | None = None
    segment: int | None = None
    """Index into the rollout's segments; None for tokens that no call sampled. A token with a segment whose ``mask`` is
    False was sampled without an alternative."""


@dataclass(frozen=True, slots=True)
class ExampleSegment:
    """One call's sampled tokens."""

    call: str
    policy_version: int | None
    credit: float | None = None


@dataclass(frozen=True, slots=True)
class ExampleRollout:
    """One attempt's token sequence, as it was trained."""

    title: str
    agent: str
    attempt_id: str
    reward: float | None
    segments: tuple[ExampleSegment, ...]
    tokens: tuple[ExampleToken, ...]
    step: int | None = None


@dataclass(frozen=True, slots=True)
class QuickstartReport:
    """A whole run. Times are Unix seconds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    seed: int
    model: str
    policy: str
    started: float
    ended: float
    machine: Machine
    held_out: HeldOut
    steps: tuple[StepResult, ...]
    versions: tuple[PolicyVersion, ...]
    ledger: tuple[LedgerRow, ...]
    sampled_tokens: int | None = None
    """Tokens that the engine sampled for training, counted at the gateway: the ledger must add up to it."""
    probe_tolerance: float | None = None
    """Largest |trainer - engine| of a probe logprob with which a version is served, nats."""
    ready_s: float | None = None
    """Seconds from the start until agents could call."""
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[ExampleRollout, ...] = ()
    format: int = FORMAT

    @property
    def ledger_tokens(self) -> int:
        """Return the tokens of all rows of the ledger."""
        return sum(row.tokens for row in self.ledger)

    @property
    def ledger_balances(self) -> bool | None:
        """Whether every sampled token is accounted for; None if they were not counted."""
        return None if self.sampled_tokens is None else self.ledger_tokens == self.sampled_tokens


_ADAPTER = TypeAdapter(QuickstartReport)


def to_json(report: QuickstartReport) -> bytes:
    """Return the report as JSON; NaN and infinity become null."""
    return _ADAPTER.dump_json(report, indent=1) + b"\n"


def read_report(path: Path) -> QuickstartReport:
    """Read ``report.json``.

    Raises:
        ReportError: the file cannot be read, or is not a report of this format.
    """
    try:
        report = _ADAPTER.validate_json(path.read_bytes())
    except OSError as error:
        raise ReportError(f"cannot read the report {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ReportError(f"{path} is not a report: {where}: {first['msg']}") from error
    if report.format != FORMAT:
        raise ReportError(f"{path} has format {report.format}; this version reads format {FORMAT}")
    return report


def example_of(
    sample: Sample,
    advantages: Sequence[float],
    decode: Callable[[int], str],
    *,
    title: str,
    reward: float | None,
    step: int | None = None,
) -> ExampleRollout:
    """Describe a training sample token by token, with the advantages ``[L]`` that the trainer used.

    Args:
        sample: the sample as it was trained.
        advantages: one per token (``StepReport.advantages[sample_id]``).
        decode: text of one token id.
        title: what the rollout was about (its task).

    Raises:
        ValueError: there is not one advantage per token.
    """
    if len(advantages) != len(sample.token_ids):
        raise ValueError(
            f"sample {sample.sample_id}: {len(advantages)} advantages for {len(sample.token_ids)} tokens; "
            "pass the row of the same step"
        )
    segment_of = {
        position: index
        for index, segment in enumerate(sample.segments)
        for position in range(segment.start, segment.end)
    }
    tokens = tuple(
        ExampleToken(
            text=decode(token_id),
            id=token_id,
            mask=bool(mask),
            logprob=logprob if mask else None,
            advantage=advantage if mask else None,
            segment=segment_of.get(position),
        )
        for position, (token_id, mask, logprob, advantage) in enumerate(
            zip(sample.token_ids, sample.loss_mask, sample.behavior_logprobs, advantages, strict=True)
        )
    )
    segments = tuple(
        ExampleSegment(call=segment.transition_id, policy_version=segment.policy_version, credit=segment.credit)
        for segment in sample.segments
    )
    return ExampleRollout(title, sample.agent, sample.attempt_id, reward, segments, tokens, step)
