"""Store: the interface of the store for every part of the daemon, on either database.

Durability: ``append`` returns only after its commit, which both databases have synced to disk by then, so an
acknowledged span survives ``kill -9`` of the daemon and a power failure. The cost, one sync per transaction, is shared
by everything queued meanwhile (see ``writer.py``).
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning_trainer.errors import StoreError
from lightning_trainer.store.batch_codec import encode_batch
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.media import table as media_table
from lightning_trainer.store.media.storing import MediaStore, exchanged_of, insert_with_media
from lightning_trainer.store.records import Rollback, StepRecord, StepState
from lightning_trainer.store.sharing import Sharing
from lightning_trainer.store.tables import arrivals as arrival_table
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import participations as participation_table
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import totals
from lightning_trainer.store.tables import versions as version_table
from lightning_trainer.store.tables.steps import Assignment, select_consumed
from lightning_trainer.store.tables.totals import StoreCounts, count
from lightning_trainer.store.worklist import drops, waiting
from lightning_trainer.store.worklist.waiting import WaitingAttempt
from lightning_trainer.types import (
    Attempt,
    AttemptState,
    LedgerRow,
    PolicyVersion,
    RolloutMode,
    Span,
    StepReport,
    TrainingBatch,
)


class Store(Sharing, MediaStore):
    """The store's operations; see ``SqliteStore`` and ``PostgresStore``."""

    # -- spans and attempts ------------------------------------------------------------------------------------------

    async def append(self, spans: Sequence[Span]) -> int:
        """Commit spans, and what they say about their attempts; return how many were new.

        Raises:
            MalformedTelemetryError: a span cannot be written as OTLP; none of them was written.
            StoreError: the commit failed; none of them was written.
        """
        return len(await self.append_new(spans))

    async def append_new(self, spans: Sequence[Span]) -> list[Span]:
        """Commit spans as :meth:`append` does and return those that were new."""
        if not spans:
            return []
        with self._noting_failure():
            if self._journal is not None:
                await asyncio.to_thread(self._journal.append, spans)
            exchanged = await exchanged_of(spans)
            return await self._write(lambda connection: insert_with_media(connection, exchanged, self.retention.config))

    async def has_rollout(self, rollout_id: str) -> bool:
        return await self._read(lambda connection: span_table.has_rollout(connection, rollout_id))

    async def has_response(self, response_id: str, *, attempt_id: str | None = None) -> bool:
        return await self._read(lambda connection: span_table.has_response(connection, response_id, attempt_id))

    async def attempts_of_response(self, response_id: str) -> list[str]:
        """Return the first attempts whose calls have the response id; more than one if a server repeats its ids."""
        return await self._read(lambda connection: span_table.attempts_of_response(connection, response_id))

    async def consumed(
        self,
        *,
        attempt_ids: Collection[str] = (),
        rollout_ids: Collection[str] = (),
        response_ids: Collection[str] = (),
        policy: str | None = None,
    ) -> dict[str, int]:
        """Return, by attempt id, the step that consumed the attempt; see :func:`steps.select_consumed`."""
        return await self._read(
            lambda connection: select_consumed(
                connection,
                attempt_ids=attempt_ids,
                rollout_ids=rollout_ids,
                response_ids=response_ids,
                policy=policy,
            )
        )

    async def last_span(self) -> int:
        """Return a number that changes whenever spans are stored."""
        return await self._read(span_table.last)

    async def counts(self) -> StoreCounts:
        """Return how much the store holds."""
        return await self._read(count)

    async def spans_of_attempts(self, attempt_ids: Sequence[str]) -> list[Span]:
        """Return all spans of the attempts, oldest first; see :func:`spans.select_of_attempts`."""
        return await self._read(lambda connection: span_table.select_of_attempts(connection, attempt_ids))

    async def spans_of_trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, oldest first."""
        return await self._read(lambda connection: span_table.select_of_trace(connection, trace_id))

    async def ended_attempts(
        self, *, mode: RolloutMode | str | None = RolloutMode.TRAIN, policy: str | None = None
    ) -> list[Attempt]:
        """Return all ended attempts that no step has consumed (of ``policy``, or of any), oldest end first.

        It scans the history; loops should use :meth:`waiting_attempts`.
        """
        wanted = None if mode is None else RolloutMode(mode)
        return await self._read(lambda connection: attempt_table.select_ended(connection, mode=wanted, policy=policy))

    async def enroll(self, policy: str, *, earlier: bool = False) -> None:
        """Start to maintain the list of attempts that wait for a policy; see :func:`waiting.enroll`."""
        await self._write(lambda connection: waiting.enroll(connection, policy, earlier=earlier))

    async def waiting_attempts(self, policy: str) -> list[WaitingAttempt]:
        """Return the ended attempts that a step of an enrolled policy may take, oldest end first."""
        return await self._read(lambda connection: waiting.select(connection, policy))

    async def let_go(self, policy: str, attempt_ids: Collection[str]) -> None:
        """Release waiting attempts until something of their group or task arrives."""
        if attempt_ids:
            await self._write(lambda connection: waiting.let_go(connection, policy, attempt_ids))

    async def drop(
        self, name: str, *, reason: str, kind: drops.Kind | None = None, policy: str | None = None
    ) -> drops.Dropped:
        """Take something out of training; see :func:`drops.drop`."""
        return await self._write(
            lambda connection: drops.drop(connection, name, reason=reason, kind=kind, policy=policy)
        )

    async def take_part(self, policy: str, attempt_ids: Collection[str]) -> None:
        """Record that a policy answered calls of the attempts."""
        if attempt_ids:

            def put(connection: Connection) -> None:
                new = participation_table.put(connection, [(policy, one) for one in attempt_ids])
                waiting.heard_of(connection, new)

            await self._write(put)

    async def begin_policy(self, policy: str) -> int | None:
        """Record that a policy is started; return how many rollouts preceded its first start, None at later starts."""
        return await self._write(lambda connection: participation_table.begin(connection, policy))

    async def ended_by_group(
        self,
        prefix: str,
        *,
        mode: RolloutMode = RolloutMode.TRAIN,
        policy: str | None = None,
        taken: tuple[str, int, int] | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> dict[str, int]:
        """Return the number of ended attempts of a mode, by group id, for groups whose id begins with ``prefix``.

        Args:
            policy: only groups that this policy took part in.
            taken: a policy and two steps: only attempts that the policy's steps after the first and up to the second
                have consumed.
            after: only groups after this one, in order of id.
            limit: maximum number of groups.
        """
        return await self._read(
            lambda connection: attempt_table.count_ended(
                connection, prefix, mode=mode, policy=policy, taken=taken, after=after, limit=limit
            )
        )

    async def missing_spans(self, policy: str | None = None) -> dict[str, int]:
        """Return the number of missing spans of every incomplete ended attempt that no step (of that policy, or of any)
        has consumed."""
        return await self._read(lambda connection: arrival_table.select_missing(connection, policy))

    async def attempts(
        self,
        *,
        attempt_ids: Sequence[str] | None = None,
        rollout_id: str | None = None,
        group_id: str | None = None,
        mode: RolloutMode | str | None = None,
        state: AttemptState | str | None = None,
        limit: int | None = None,
    ) -> list[Attempt]:
        """Return the attempts that meet every given condition, oldest start first; with a limit, the newest ones."""
        return await self._read(
            lambda connection: attempt_table.select(
                connection,
                attempt_ids=attempt_ids,
                rollout_id=rollout_id,
                group_id=group_id,
                mode=None if mode is None else RolloutMode(mode),
                state=None if state is None else AttemptState(state),
                limit=limit,
            )
        )

    async def attempt(self, attempt_id: str) -> Attempt | None:
        """Return one attempt, or None if no span names it."""
        found = await self.attempts(attempt_ids=[attempt_id])
        return found[0] if found else None

    # -- steps, batches, ledger --------------------------------------------------------------------------------------

    async def assign(
        self,
        batch: TrainingBatch | None,
        *,
        policy: str,
        step: int,
        attempt_ids: Sequence[str],
        ledger: Sequence[LedgerRow],
        state: StepState | str = StepState.ASSIGNED,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Record a step with its batch, ledger, and metrics, and mark its attempts as consumed, in one transaction.

        Raises:
            StoreError: the step exists, or an attempt is unknown or already consumed; nothing was written.
        """
        if batch is not None and (batch.policy, batch.step) != (policy, step):
            raise StoreError(f"the batch is step {batch.step} of policy {batch.policy!r}, not {step} of {policy!r}")
        if batch is None and StepState(state) is not StepState.SKIPPED:
            raise StoreError(f"step {step} of policy {policy!r} has no batch; record it as skipped")
        assignment = Assignment(
            policy=policy,
            step=step,
            state=StepState(state),
            attempt_ids=tuple(attempt_ids),
            batch=None if batch is None else await asyncio.to_thread(encode_batch, batch),
            ledger=tuple(ledger),
            metrics=metrics or {},
            trained=step_table.attempts_of(batch),
            media=() if batch is None else tuple(media_table.digests_of(m for s in batch.samples for m in s.media)),
        )
        await self._write(self._fenced(policy, lambda connection: step_table.assign(connection, assignment)))

    async def finish_step(self, policy: str, report: StepReport, state: StepState | str = StepState.TRAINED) -> None:
        """Record how a step ended.

        Raises:
            StoreError: it was never assigned, or its state does not allow the change.
        """
        ended = StepState(state)
        await self._write(self._fenced(policy, lambda connection: step_table.finish(connection, policy, report, ended)))

    async def steps(
        self,
        policy: str,
        *,
        before: int | None = None,
        after: int | None = None,
        newest: int | None = None,
        oldest: int | None = None,
        advantages: bool = False,
    ) -> list[StepRecord]:
        """Return steps in ascending order: those before and after the given steps and, of these, the given number of
        the newest or oldest; by default all. Their reports have no advantages unless requested."""
        return await self._read(
            lambda connection: step_table.select_steps(
                connection, policy, before=before, after=after, newest=newest, oldest=oldest, advantages=advantages
            )
        )

    async def step_states(self, policy: str) -> dict[int, StepState]:
        """Return the state of every step of a policy, ascending, without reading anything else."""
        return await self._read(lambda connection: step_table.select_states(connection, policy))

    async def step(self, policy: str, step: int) -> StepRecord:
        """Return one step.

        Raises:
            StoreError: it was never assigned.
        """
        found = await self._read(
            lambda connection: step_table.select_steps(connection, policy, only=step, advantages=True)
        )
        if not found:
            raise StoreError(f"step {step} of policy {policy!r} is not in the store {self.name}")
        return found[0]

    async def batch(self, policy: str, step: int) -> TrainingBatch:
        """Return the batch of one step.

        Raises:
            StoreError: the step was never assigned, or was skipped.
        """
        found = await self._read(lambda connection: step_table.select_batches(connection, policy, only=step))
        if not found:
            raise StoreError(f"step {step} of policy {policy!r} has no batch in the store {self.name}")
        return found[0]

    async def without_batch(self, policy: str, steps: Collection[int]) -> list[int]:
        """Return those of some steps whose batches retention has deleted, ascending."""
        return await self._read(lambda connection: step_table.select_without_batch(connection, policy, steps))

    async def ledger(
        self, policy: str, step: int | None = None, *, since: int = 0, before: int | None = None
    ) -> list[LedgerRow]:
        """Return the ledger rows of one step, or of the steps from ``since`` up to, but not including, ``before``."""
        return await self._read(
            lambda connection: step_table.select_ledger(connection, policy, step, since=since, before=before)
        )

    # -- policy versions ---------------------------------------------------------------------------------------------

    async def put_version(self, version: PolicyVersion) -> None:
        """Insert or update a version; making one live retires the previous live one, in the same transaction.

        Raises:
            StoreError: its recorded state does not allow the change.
        """
        await self._write(self._fenced(version.policy, lambda connection: version_table.put(connection, version)))

    async def versions(
        self, policy: str, *, before: int | None = None, newest: int | None = None, oldest: int | None = None
    ) -> list[PolicyVersion]:
        """Return versions in ascending order: those before version ``before`` and, of these, the given number of the
        newest or oldest; by default all."""
        return await self._read(
            lambda connection: version_table.select(connection, policy, before=before, newest=newest, oldest=oldest)
        )

    async def version(self, policy: str, version: int) -> PolicyVersion | None:
        """Return one version; None if there is no version of that number."""
        return await self._read(lambda connection: version_table.select_one(connection, policy, version))

    async def served_versions(self, policy: str, *, newest: int) -> list[int]:
        """Return the newest versions that are or were live, ascending."""
        return await self._read(lambda connection: version_table.select_served(connection, policy, newest))

    async def live_version(self, policy: str) -> PolicyVersion | None:
        """Return the policy's live version; None if there is none."""
        return await self._read(lambda connection: version_table.select_live(connection, policy))

    async def put_rollback(self, policy: str, version: int, *, at_ns: int) -> Rollback:
        """Record that the next step continues from the weights of ``version``."""
        return await self._write(
            self._fenced(policy, lambda connection: version_table.put_rollback(connection, policy, version, at_ns))
        )

    async def rollbacks(self, policy: str) -> list[Rollback]:
        """Return the policy's rollbacks in chronological order."""
        return await self._read(lambda connection: version_table.select_rollbacks(connection, policy))

    # -- retention -----------------------------------------------------------------------------------------------------

    async def sweep(self) -> bool:
        """Delete a slice of what the limits of age and use allow to delete; return True if there may be more."""
        return await self._write(self.retention.sweep)

    async def holds(self) -> dict[str, Any]:
        """Return what the store holds and what retention has deleted (see :meth:`Retention.holds`), and why the store
        cannot be written, if it cannot."""
        return {**await self._read(self.retention.holds), "write_failure": self.write_failure}

    async def measures(self) -> dict[str, float]:
        """Return the store's values for a step's metrics."""
        held = await self._read(totals.select)
        return {
            "store/bytes": float(self.retention.size.total),
            "store/spans": float(held.get("spans", 0)),
            "store/deleted_spans": float(held.get(f"{totals.DELETED}spans", 0)),
        }
