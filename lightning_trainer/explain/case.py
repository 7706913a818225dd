"""Everything known about one attempt and the outcome of its calls: the input of diagnoses.

A step's batch and ledger are on disk. The outcome of each call is recomputed from the stored spans by the same pure
function that builds batches; if no step took the calls, that is what training would decide now. If the result
contradicts the batch (a reward came late, the configuration changed), the batch is right.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property

from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.ancestry import SpanKey, key_of, resolve_identities, unique
from lightning_trainer.ingest.calls import JoinedCall, joined_calls
from lightning_trainer.ingest.reading import Reading
from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.credit.groups import GroupSummary
from lightning_trainer.samples.transitions.ledger import NO_AGENT
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.types import Attempt, Call, LedgerRow, Outcome, RolloutMode, Span, TrainingBatch
from lightning_trainer.versions.lineage import LeftBehind

CHANGED_SINCE = "changed_since"
JOINED = "joined"
_OF_THE_STEP = frozenset(
    {
        Reason.STALE,
        Reason.NOT_IN_VOCABULARY,
        Reason.NON_TEXT,
        Reason.MEDIA_MISSING,
        Reason.PLACEHOLDER,
        Reason.LOW_VARIANCE_GROUP,
    }
)
"""Reasons that depend on what only the daemon knew at that step: its versions, model, kept images, earlier steps."""


@dataclass(frozen=True, slots=True)
class ExplainedOutcome:
    """A call's outcome with its reason."""

    outcome: Outcome
    reason: str
    """As in the ledger, or ``CHANGED_SINCE`` or ``JOINED``, which exist only in hindsight."""
    explanation: str


def outcomes_of(
    calls: Iterable[Call],
    build: Build,
    step: StepRecord | None,
    batch: TrainingBatch | None,
    ledger: Iterable[LedgerRow] = (),
    *,
    batch_deleted: bool = False,
) -> dict[str, ExplainedOutcome]:
    """Return the outcome of each call by id; if no step has consumed its attempt, the outcome as of now.

    Args:
        build: made from what is stored now.
        step: the one that consumed the calls' attempt.
        batch: that step's, as recorded; without a step, the one in ``build``, or None while the attempt waits for one.
        ledger: that step's, as recorded.
        batch_deleted: the step had a batch that is no longer stored, so what it held is what ``build`` makes again.
    """
    samples = batch.samples if batch is not None else ()
    trained = {segment.transition_id for sample in samples for segment in sample.segments}
    then = _only_then(ledger, build.ledger)
    without = None if step is None or batch_deleted else step.step
    return {call.call_id: _call_outcome(call, trained, build, without, then) for call in calls}


def _call_outcome(
    call: Call, trained: Set[str], build: Build, without: int | None, then: Mapping[tuple, Set[str]]
) -> ExplainedOutcome:
    if call.call_id in trained:
        return _known(Outcome.TRAINED, Reason.SAMPLED)
    call_outcome = build.call_outcomes.get(call.call_id)
    if call_outcome is None:
        return ExplainedOutcome(
            Outcome.DEDUPLICATED, JOINED, "Among all spans of its group it is a record of another call."
        )
    if call_outcome[0] is not Outcome.TRAINED:
        return _known(*call_outcome)
    known = then.get((call.agent or NO_AGENT, call.policy, call.policy_version), frozenset())
    if len(known) == 1 and known <= _OF_THE_STEP:
        reason = Reason(next(iter(known)))
        return _known(Outcome.MASKED if reason is Reason.LOW_VARIANCE_GROUP else Outcome.DROPPED, reason)
    if without is not None:
        return ExplainedOutcome(
            Outcome.DROPPED,
            CHANGED_SINCE,
            f"Step {without} was built without the call. With what is stored now it would be trained: a reward or "
            "spans came later, or the configuration has changed since.",
        )
    return _known(*call_outcome)


def _only_then(recorded: Iterable[LedgerRow], now: Iterable[LedgerRow]) -> dict[tuple, set[str]]:
    """Return, by agent, policy and version, the reasons that a step's ledger gives more calls than ``now`` does."""
    calls: Counter[tuple] = Counter()
    for row in recorded:
        calls[row.agent, row.policy, row.policy_version, row.reason] += row.calls
    for row in now:
        calls[row.agent, row.policy, row.policy_version, row.reason] -= row.calls
    found: dict[tuple, set[str]] = {}
    for (*whose, reason), more in calls.items():
        if more > 0 and reason != Reason.SAMPLED:
            found.setdefault(tuple(whose), set()).add(reason)
    return found


def _known(outcome: Outcome, reason: Reason) -> ExplainedOutcome:
    return ExplainedOutcome(outcome, reason.value, reason.explanation)


@dataclass(frozen=True, slots=True)
class Judged:
    """The build of a set of attempts: those of one step, or of a group that waits for one."""

    build: Build
    """Rebuilt from what is stored now, with the current configuration."""
    attempts: tuple[Attempt, ...]
    """With the group ids that the policy's grouping gives them."""
    step: StepRecord | None = None
    """The step that consumed them; None if there is none yet."""
    batch: TrainingBatch | None = None
    """As recorded; None if the step had nothing to train on, or if retention has deleted it."""
    ledger: tuple[LedgerRow, ...] = ()
    """The step's, as recorded."""
    partial: bool = False
    """Whether spans of some of the step's attempts were deleted, so that the build lacks a part of the step."""
    left_behind: LeftBehind | None = None
    """Set if training has gone back to before the step."""
    reasons_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By attempt id: the reasons in the outcomes of its calls by the policy's agents."""

    @property
    def batch_deleted(self) -> bool:
        """Whether the step had a batch, and retention has deleted it."""
        return self.step is not None and self.batch is None and self.step.state is not StepState.SKIPPED


@dataclass(frozen=True)
class Case:
    """One attempt of a rollout."""

    rollout_id: str
    attempt: Attempt | None
    """None if spans name the rollout but no attempt."""
    policy: PolicyConfig
    """The policy as the step that took the attempt trained it, or as the next step will."""
    spans: tuple[Span, ...]
    """All spans of the attempt."""
    reading: Reading
    """Read from these spans."""
    judged: Judged
    now_ns: int
    lacking: int = 0
    """Number of spans that have not arrived although they had started, according to their process."""
    lost: tuple[Span, ...] = ()
    """Spans whose parent is not in the store."""
    groups_ready: int = 0
    """Groups that the next step could take now; only for an attempt that waits for one."""
    paused: str | None = None
    """Why someone paused training; None if no one has."""
    ended: int | None = None
    """The policy's last step, if it is done."""
    demonstration_file: tuple[int | None, bool] | None = None
    """If the next step trains on a file: the last step in a row that does (None: all further ones), and whether a later
    step takes attempts."""
    from_files: bool = False
    """Read from files: no step will take the attempt. It is judged with everything that was read, as in ``build``."""
    no_policy: bool = False
    """Whether the configuration has no policy; ``policy`` is then ``config.any_agent``."""
    dropped: str | None = None
    """Why the attempt was taken out of training; None if it was not."""
    expired_ns: int | None = None
    """When retention deleted the attempt's spans; None if it did not."""
    feedback: int = 0
    """Number of stored pieces of feedback on the attempt, whether or not they count."""
    earlier: bool = False
    """Whether it was recorded before the policy was first started, and the policy does not train such attempts."""
    passed_by: bool = False
    """Whether it ended while the policy was frozen or not configured, so that no step will take it."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the calls of all agents, by start time."""
        return self.reading.calls

    @cached_property
    def own(self) -> tuple[Call, ...]:
        """Return the calls of the policy's agents."""
        return tuple(call for call in self.calls if self.policy.claims(call.agent))

    @cached_property
    def call_outcomes(self) -> Mapping[str, ExplainedOutcome]:
        """Return the outcomes by call id."""
        judged = self.judged
        return outcomes_of(
            self.calls, judged.build, judged.step, judged.batch, judged.ledger, batch_deleted=judged.batch_deleted
        )

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Return the numbers that identify calls in sentences: their order in time, from 1; by call id."""
        return {call.call_id: number for number, call in enumerate(self.calls, start=1)}

    @cached_property
    def by_key(self) -> Mapping[SpanKey, Span]:
        """Return the attempt's spans by trace and span id."""
        return unique(self.spans)

    @cached_property
    def joined(self) -> Mapping[SpanKey, JoinedCall]:
        """Return all records of each call, by the span that its tokens were taken from."""
        calls = joined_calls(self.by_key, resolve_identities(self.by_key))
        return {key_of(call.best.span): call for call in calls}

    @cached_property
    def members(self) -> tuple[Attempt, ...]:
        """Return the attempts of its group and mode, including itself."""
        own = next((a for a in self.judged.attempts if a.attempt_id == self.attempt_id), None)
        return () if own is None else self._of_group(own.group_id, own.mode)

    @property
    def baselines(self) -> tuple[Attempt, ...]:
        """Return the baseline attempts of its group."""
        return self._of_group(self.members[0].group_id, RolloutMode.BASELINE) if self.members else ()

    @property
    def group(self) -> GroupSummary | None:
        """Return the attempt's group; None if it is not compared with others, such as an evaluation."""
        ids = {member.group_id for member in self.members}
        return next((group for group in self.judged.build.groups if group.group_id in ids), None)

    @property
    def attempt_id(self) -> str | None:
        """Return the attempt's id; None if there is no attempt."""
        return None if self.attempt is None else self.attempt.attempt_id

    def _of_group(self, group_id: str, mode: RolloutMode) -> tuple[Attempt, ...]:
        return tuple(a for a in self.judged.attempts if a.group_id == group_id and a.mode is mode)

    def number(self, call: Call) -> str:
        """Return the number that identifies the call in sentences, as text."""
        return str(self.numbers[call.call_id])

    def met(self, *reasons: str) -> tuple[Call, ...]:
        """Return the calls of the policy's agents with one of these outcomes."""
        return tuple(call for call in self.own if self.call_outcomes[call.call_id].reason in reasons)

    @property
    def waits(self) -> bool:
        """Whether the attempt has ended and a later step may still train it."""
        attempt = self.attempt
        ended = attempt is not None and attempt.ended_ns is not None and attempt.mode is RolloutMode.TRAIN
        to_come = ended and self.judged.step is None
        return to_come and not (self.from_files or self.no_policy or self.earlier or self.passed_by)
