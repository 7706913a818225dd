"""From a store's snapshot to the cases of a rollout; read-only, so a daemon may run at the same time.

Attempts that a step consumed are judged together, as they were then; an attempt that still waits is judged with its
group as it is now; attempts from files are judged all together. Each such set is judged once, however many of its
rollouts are explained.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.errors import ConfigError
from lightning_trainer.explain.case import Case, Judged
from lightning_trainer.ingest.reading import Reading, read_spans
from lightning_trainer.judges.reliability.report import corrections, unknown_corrections
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.credit.group_collector import collect, regroup
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.transitions.causes import span_parents
from lightning_trainer.samples.transitions.eligibility import with_trusted
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepRecord
from lightning_trainer.store.retention.sweep import expired_among
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import feedback, participations, pauses
from lightning_trainer.store.tables import rollouts as rollout_queries
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.worklist import drops, waiting
from lightning_trainer.types import Attempt, AttemptState, Call, LedgerRow, RolloutMode, Span
from lightning_trainer.versions.lineage import left_behind

_BESIDE = 64
"""Maximum number of a group's attempts to read if no policy gives the size of groups."""
_JUDGED_AT_ONCE = 4
"""Number of sets in the cache; rollouts that are explained one after the other mostly belong to one step."""


class Gathering:
    """Makes cases from one snapshot.

    Args:
        connection: of a store, read-only, inside a transaction (``store.scan.read_only``).
        policy: the one that trains the agents.
        others: names of the other policies; attempts that their steps consumed may also belong to this policy.
        from_files: the snapshot is of files (``store.sqlite.in_memory``), so no step has taken or will take an attempt.
        no_policy: the configuration has no policy; ``policy`` is ``config.any_agent``.
        judges: the configuration's; rewards of judges that the policy corrects are corrected with current rates.
    """

    def __init__(
        self,
        connection: Connection,
        policy: PolicyConfig,
        others: Sequence[str] = (),
        *,
        from_files: bool = False,
        no_policy: bool = False,
        judges: Sequence[AnyJudge] = (),
    ) -> None:
        self._connection = connection
        self._policy = policy
        self._others = others
        self._from_files = from_files
        self._no_policy = no_policy
        self._judges = judges
        self._judged: dict[tuple, Judged] = {}

    def cases(self, rollout_id: str) -> tuple[Case, ...]:
        """Return a case for each attempt of a rollout, by start; a single case without an attempt if spans name none.

        Raises:
            ConfigError: a step of another policy consumed an attempt.
        """
        attempts = attempt_table.select(self._connection, rollout_id=rollout_id)
        if not attempts:
            spans = rollout_queries.select_spans_without_attempt(self._connection, rollout_id)
            reading = self._read(spans)
            return (self._case(rollout_id, None, spans, reading, self._judge(reading, spans, ())),)
        return tuple(self._case_of(attempt) for attempt in attempts)

    def _case_of(self, attempt: Attempt) -> Case:
        spans = span_table.select_of_attempts(self._connection, [attempt.attempt_id])
        assigned = rollout_queries.select_assignment(self._connection, attempt.attempt_id, self._policy.name)
        if self._from_files:
            judged = self._of_all()
        elif assigned is not None and assigned[0] not in self._others:
            judged = self._of_step(*assigned)
            attempt = replace(attempt, mode=_mode_in(judged, attempt))
        elif attempt.mode is RolloutMode.TRAIN and attempt.state is not AttemptState.RUNNING:
            judged = self._of_group(attempt)
        else:
            judged = self._judge(self._read(spans), spans, (attempt,))
        return self._case(attempt.rollout_id, attempt, spans, self._read(spans), judged)

    def _case(
        self, rollout_id: str, attempt: Attempt | None, spans: list[Span], reading: Reading, judged: Judged
    ) -> Case:
        lacking = 0 if attempt is None else rollout_queries.select_lacking(self._connection, attempt.attempt_id)
        return Case(
            rollout_id=rollout_id,
            attempt=attempt,
            policy=self._policy_at(judged.step),
            spans=tuple(spans),
            reading=reading if attempt is None else replace(reading, calls=_of_attempt(attempt, spans, reading.calls)),
            judged=judged,
            now_ns=time.time_ns(),
            lacking=lacking,
            lost=rollout_queries.without_parent(self._connection, spans),
            groups_ready=self._groups_ready(judged),
            paused=pauses.reason_of(self._connection, self._policy.name),
            ended=last if (last := self._policy.last_step) is not None and last < self._next_step else None,
            demonstration_file=self._demonstration_file,
            from_files=self._from_files,
            no_policy=self._no_policy,
            dropped=None if attempt is None else drops.reason_of(self._connection, attempt.attempt_id),
            expired_ns=None
            if attempt is None
            else rollout_queries.select_expired(self._connection, attempt.attempt_id),
            feedback=0 if attempt is None else feedback.count_of(self._connection, attempt.attempt_id),
            earlier=judged.step is None and self._is_earlier(attempt),
            passed_by=judged.step is None and self._is_passed_by(attempt),
        )

    def _is_earlier(self, attempt: Attempt | None) -> bool:
        """Whether the policy leaves the attempt out because it was recorded before the policy existed."""
        if attempt is None or attempt.mode is not RolloutMode.TRAIN:
            return False
        if self._from_files or self._no_policy or self._policy.train_recorded:
            return False
        return participations.is_earlier(self._connection, self._policy.name, attempt.attempt_id)

    def _is_passed_by(self, attempt: Attempt | None) -> bool:
        """Whether the attempt ended while the policy, which is trained now, was frozen or not configured."""
        if attempt is None or attempt.mode is not RolloutMode.TRAIN or attempt.ended_ns is None:
            return False
        if self._from_files or self._no_policy or not self._policy.train:
            return False
        return waiting.passed_by(
            self._connection, self._policy.name, attempt.attempt_id, earlier=self._policy.train_recorded
        )

    def _read(self, spans: Sequence[Span]) -> Reading:
        reading = read_spans(spans)
        return replace(reading, calls=tuple(with_trusted(reading.calls, self._policy)))

    def _of_all(self) -> Judged:
        if (known := self._judged.get(())) is not None:
            return known
        return self._keep((), self._judged_together(attempt_table.select(self._connection), None))

    def _of_step(self, policy: str, step: int) -> Judged:
        if policy != self._policy.name:
            ours = "has no policy" if self._no_policy else f"is of policy {self._policy.name!r}"
            raise ConfigError(
                f"a step of policy {policy!r} took this rollout, and the configuration {ours}: name the "
                f"configuration of {policy!r} with --config"
            )
        if (known := self._judged.get((policy, step))) is not None:
            return known
        (record,) = step_table.select_steps(self._connection, policy, only=step, advantages=True)
        attempts = self._as_taken(attempt_table.select(self._connection, attempt_ids=record.attempt_ids), record)
        return self._keep((policy, step), self._judged_together(attempts, record))

    def _as_taken(self, attempts: list[Attempt], record: StepRecord) -> list[Attempt]:
        """Return a step's attempts as the step took them: those that were dropped only later have their mode back."""
        ledger = step_table.select_ledger(self._connection, self._policy.name, record.step)
        if all(row.reason != Reason.TAKEN_OUT for row in ledger):
            return drops.before_drop(self._connection, attempts)
        return attempts

    def _of_group(self, attempt: Attempt) -> Judged:
        # Without a policy no step consumes attempts, so `_waiting` would read the whole history.
        waiting = self._ended_beside(attempt) if self._no_policy else self._waiting()
        calls: Sequence[Call] = ()
        if self._policy.group_by == "prompt":
            ids = [one.attempt_id for one in waiting]
            calls = self._read(span_table.select_of_attempts(self._connection, ids)).calls
        group_of = {one.attempt_id: one.group_id for one in regroup(waiting, calls, self._policy)}
        if attempt.attempt_id not in group_of:  # the policy took no part in its group
            spans = span_table.select_of_attempts(self._connection, [attempt.attempt_id])
            return self._judge(self._read(spans), spans, (attempt,))
        group_id = group_of[attempt.attempt_id]
        if (known := self._judged.get((group_id,))) is not None:
            return known
        members = [one for one in waiting if group_of[one.attempt_id] == group_id]
        return self._keep((group_id,), self._judged_together(members, None))

    def _ended_beside(self, attempt: Attempt) -> list[Attempt]:
        """Return the newest ended attempts of an attempt's group that no step has consumed."""
        beside = attempt_table.select(self._connection, group_id=attempt.group_id, limit=_BESIDE)
        return [
            one
            for one in beside
            if one.ended_ns is not None
            and one.mode is RolloutMode.TRAIN
            and rollout_queries.select_assignment(self._connection, one.attempt_id, self._policy.name) is None
        ]

    def _waiting(self) -> list[Attempt]:
        """Return the ended attempts that steps are made of."""
        needs_baseline = self._policy_at(None).algorithm.needs_baseline
        modes = (RolloutMode.TRAIN, RolloutMode.BASELINE) if needs_baseline else (RolloutMode.TRAIN,)
        if waiting.is_enrolled(self._connection, self._policy.name):
            listed = waiting.select(self._connection, self._policy.name)
            mine = waiting.of_policy(listed) if self._others or self._policy.train_recorded else listed
            return [one.attempt for one in mine if one.attempt.mode in modes]
        return [
            attempt
            for mode in modes
            for attempt in attempt_table.select_ended(
                self._connection,
                mode=mode,
                policy=self._policy.name,
                took_part=bool(self._others),
                earlier=self._policy.train_recorded,
            )
        ]

    def _policy_at(self, record: StepRecord | None) -> PolicyConfig:
        """Return the policy as that step trained it; without a step, as the next one will."""
        return self._policy.at_step(self._next_step if record is None else record.step)

    @cached_property
    def _next_step(self) -> int:
        return step_table.last_step(self._connection, self._policy.name) + 1

    @cached_property
    def _demonstration_file(self) -> tuple[int | None, bool] | None:
        step = self._next_step
        spans = ((first, last) for first, last in self._policy.shown_steps if first <= step)
        ends = [last for _, last in spans if last is None or step <= last]
        return (ends[0], self._policy.takes_attempts_after(step)) if ends else None

    def _judged_together(self, attempts: Sequence[Attempt], record: StepRecord | None) -> Judged:
        spans = span_table.select_of_attempts(self._connection, [attempt.attempt_id for attempt in attempts])
        return self._judge(self._read(spans), spans, attempts, record)

    def _judge(
        self, reading: Reading, spans: Sequence[Span], attempts: Sequence[Attempt], record: StepRecord | None = None
    ) -> Judged:
        step = 0 if record is None else record.step
        policy = self._policy_at(record)
        build = build_batch(
            reading.calls,
            attempts,
            reading.evaluations,
            policy,
            step,
            span_parents=span_parents(spans),
            corrections=self._corrections(policy),
        )
        reasons: dict[str, list[str]] = {}
        for call in reading.calls:
            if call.attempt_id is not None and policy.claims(call.agent) and call.call_id in build.call_outcomes:
                reasons.setdefault(call.attempt_id, []).append(build.call_outcomes[call.call_id][1].value)
        batch = build.batch if self._from_files else None
        ledger: Sequence[LedgerRow] = ()
        if record is not None:
            batch = next(iter(step_table.select_batches(self._connection, policy.name, only=step)), None)
            ledger = step_table.select_ledger(self._connection, policy.name, step)
        return Judged(
            build=build,
            attempts=tuple(regroup(attempts, reading.calls, policy)),
            step=record,
            batch=batch,
            ledger=tuple(ledger),
            partial=record is not None and bool(expired_among(self._connection, record.attempt_ids)),
            left_behind=None if record is None else left_behind(self._connection, policy.name, record.step),
            reasons_of={attempt_id: tuple(met) for attempt_id, met in reasons.items()},
        )

    def _corrections(self, policy: PolicyConfig) -> Mapping[str, Correction] | None:
        if self._from_files or not policy.corrected_rewards:
            return unknown_corrections(policy.corrected_rewards) or None
        return corrections(self._connection, policy.corrected_rewards, self._judges)

    def _keep(self, key: tuple, judged: Judged) -> Judged:
        while len(self._judged) >= _JUDGED_AT_ONCE:
            del self._judged[next(iter(self._judged))]
        self._judged[key] = judged
        return judged

    def _groups_ready(self, judged: Judged) -> int:
        if judged.step is not None or self._from_files or self._no_policy or self._policy.group_by == "prompt":
            return 0
        waiting = self._waiting()
        collection = collect(
            regroup(waiting, (), self._policy),
            group_size=self._policy.group_size,
            group_timeout_s=self._policy.group_timeout_s,
            now_ns=time.time_ns(),
            needs_baseline=self._policy_at(None).algorithm.needs_baseline,
            ungrouped={attempt.attempt_id for attempt in waiting if attempt.group_id == attempt.task_id},
        )
        return len(collection.ready)


def _mode_in(judged: Judged, attempt: Attempt) -> RolloutMode:
    return next((one.mode for one in judged.attempts if one.attempt_id == attempt.attempt_id), attempt.mode)


def _of_attempt(attempt: Attempt, spans: Sequence[Span], calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return the attempt's calls, and the calls in its traces that name no attempt.

    ``calls`` may contain others: spans of other attempts that have its calls' response ids are read too, because they
    may describe the same calls, or an id was reused.
    """
    named = (span.trace_id for span in spans if span.attributes.get(semconv.ATTEMPT_ID) == attempt.attempt_id)
    traces = set(named)
    return tuple(
        call
        for call in calls
        if call.attempt_id == attempt.attempt_id or (call.attempt_id is None and call.trace_id in traces)
    )
