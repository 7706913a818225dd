"""Everything that is known of one attempt and of what became of it: what diagnoses look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lightning_trainer.config import PolicyConfig
from lightning_trainer.explain.call_outcomes import ExplainedOutcome, outcomes_of
from lightning_trainer.ingest.ancestry import SpanKey, key_of, resolve_identities, unique
from lightning_trainer.ingest.calls import JoinedCall, joined_calls
from lightning_trainer.ingest.reading import Reading
from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.credit.groups import GroupSummary
from lightning_trainer.store.records import StepRecord
from lightning_trainer.types import Attempt, Call, RolloutMode, Span, TrainingBatch


@dataclass(frozen=True, slots=True)
class Judged:
    """What training made of a set of attempts: one step's, or those of a group that still waits for one."""

    build: Build
    """Made again from what is stored now, with the configuration of now."""
    attempts: tuple[Attempt, ...]
    """By the group ids that the policy asks for."""
    step: StepRecord | None = None
    """The step that consumed them; None while none has."""
    batch: TrainingBatch | None = None
    """As it was recorded; None where the step had nothing to train on."""
    reasons_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By attempt id: what the calls of its agents met."""


@dataclass(frozen=True)
class Case:
    """One attempt of a rollout."""

    rollout_id: str
    attempt: Attempt | None
    """None where spans name the rollout and no attempt."""
    policy: PolicyConfig
    spans: tuple[Span, ...]
    """Everything that belongs to the attempt."""
    reading: Reading
    """Of these spans."""
    judged: Judged
    now_ns: int
    lacking: int = 0
    """Spans that had started, as their process said, and have not come."""
    lost: tuple[Span, ...] = ()
    """Spans whose parent is not in the store."""
    groups_ready: int = 0
    """Groups that the next step could take now; only of an attempt that waits for one."""
    from_files: bool = False
    """No step will take the attempt: it is judged with everything that was read, as ``build`` does."""
    no_policy: bool = False
    """The configuration has none, and ``policy`` is ``config.any_agent``."""
    dropped: str | None = None
    """Why someone took it out of what is trained; None where nobody did."""
    expired_ns: int | None = None
    """When retention deleted its spans; None where it did not."""
    feedback: int = 0
    """Pieces of feedback on it that are stored, whether or not they count."""
    earlier: bool = False
    """It was recorded before the policy was first started, and the policy does not train such attempts."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Of all agents, by start time."""
        return self.reading.calls

    @cached_property
    def own(self) -> tuple[Call, ...]:
        """The calls of the policy's agents."""
        return tuple(call for call in self.calls if self.policy.claims(call.agent))

    @cached_property
    def call_outcomes(self) -> Mapping[str, ExplainedOutcome]:
        """By call id."""
        return outcomes_of(self.calls, self.judged.build, self.judged.step, self.judged.batch)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """What a call is called in words: its place in time, from 1; by call id."""
        return {call.call_id: number for number, call in enumerate(self.calls, start=1)}

    @cached_property
    def by_key(self) -> Mapping[SpanKey, Span]:
        return unique(self.spans)

    @cached_property
    def joined(self) -> Mapping[SpanKey, JoinedCall]:
        """All records of each call, by the span that its tokens were taken from."""
        calls = joined_calls(self.by_key, resolve_identities(self.by_key))
        return {key_of(call.best.span): call for call in calls}

    @cached_property
    def members(self) -> tuple[Attempt, ...]:
        """The attempts of its group and mode, itself included."""
        own = next((a for a in self.judged.attempts if a.attempt_id == self.attempt_id), None)
        return () if own is None else self._of_group(own.group_id, own.mode)

    @property
    def baselines(self) -> tuple[Attempt, ...]:
        """The baseline attempts of its group."""
        return self._of_group(self.members[0].group_id, RolloutMode.BASELINE) if self.members else ()

    @property
    def group(self) -> GroupSummary | None:
        """None for an attempt that is not compared with any, such as an evaluation."""
        ids = {member.group_id for member in self.members}
        return next((group for group in self.judged.build.groups if group.group_id in ids), None)

    @property
    def attempt_id(self) -> str | None:
        return None if self.attempt is None else self.attempt.attempt_id

    def _of_group(self, group_id: str, mode: RolloutMode) -> tuple[Attempt, ...]:
        return tuple(a for a in self.judged.attempts if a.group_id == group_id and a.mode is mode)

    def number(self, call: Call) -> str:
        return str(self.numbers[call.call_id])

    def met(self, *reasons: str) -> tuple[Call, ...]:
        """Return the calls of the policy's agents that met one of these outcomes."""
        return tuple(call for call in self.own if self.call_outcomes[call.call_id].reason in reasons)

    @property
    def waits(self) -> bool:
        """Whether the attempt is to be trained, has ended, and no step has consumed it yet."""
        attempt = self.attempt
        ended = attempt is not None and attempt.ended_ns is not None and attempt.mode is RolloutMode.TRAIN
        return ended and self.judged.step is None and not (self.from_files or self.no_policy or self.earlier)
