"""Optimizer steps: the attempts that each step consumed, its batch, its ledger, and its report.

Invariant: an attempt belongs to at most one step of a policy, and a step is written once, together with its batch and
its ledger, before it is trained. So a crash repeats a step exactly, and nothing is trained twice.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lightning_trainer.errors import StoreError, TakenOutError
from lightning_trainer.store.batch_codec import (
    decode_batch,
    decode_metrics,
    decode_report,
    encode_metrics,
    encode_report,
)
from lightning_trainer.store.connection import ALL, Connection
from lightning_trainer.store.media import table as media_table
from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.store.retention.sweep import expired_among
from lightning_trainer.store.tables import totals
from lightning_trainer.store.worklist import drops, waiting
from lightning_trainer.types import LedgerRow, Outcome, StepReport, TrainingBatch

_ALLOWED = {
    (StepState.ASSIGNED, StepState.TRAINED),
    (StepState.ASSIGNED, StepState.SKIPPED),
    (StepState.TRAINED, StepState.TRAINED),
    (StepState.SKIPPED, StepState.SKIPPED),
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything recorded about a step before it is trained."""

    policy: str
    step: int
    state: StepState
    attempt_ids: tuple[str, ...]
    batch: bytes | None
    ledger: tuple[LedgerRow, ...]
    metrics: Mapping[str, float]
    trained: frozenset[str] = frozenset()
    """Attempts that the batch has tokens of."""
    media: tuple[str, ...] = ()
    """Hashes of media that the batch refers to."""


def attempts_of(batch: TrainingBatch | None) -> frozenset[str]:
    """Return the attempts that a batch has tokens of."""
    samples = () if batch is None else batch.samples
    others = (segment.attempt_id for sample in samples for segment in sample.segments)
    return frozenset(one for one in (*others, *(sample.attempt_id for sample in samples)) if one is not None)


def assign(connection: Connection, assignment: Assignment) -> None:
    """Record a step and mark its attempts as consumed.

    Raises:
        TakenOutError: an attempt that it trains was dropped or forgotten since the batch was built.
        StoreError: the step exists, or an attempt is unknown, named twice, or consumed by a step of this policy.
    """
    policy, step = assignment.policy, assignment.step
    if out := drops.among(connection, assignment.trained) | expired_among(connection, assignment.trained):
        raise TakenOutError(
            f"step {step} of policy {policy!r}: attempt {min(out)!r} was dropped or forgotten while the step was "
            "built; it is built again without it"
        )
    written = connection.execute(
        "INSERT INTO steps(policy, step, state, batch, metrics) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (policy, step, assignment.state, assignment.batch, encode_metrics(assignment.metrics)),
    )
    if written.rowcount != 1:
        raise StoreError(f"step {step} of policy {policy!r} is already recorded; a step is written once")
    for position, attempt_id in enumerate(assignment.attempt_ids):
        if connection.execute("SELECT 1 FROM attempts WHERE attempt_id = ?", (attempt_id,)).fetchone() is None:
            raise StoreError(f"step {step} of policy {policy!r}: attempt {attempt_id!r} is not in the store")
        taken = connection.execute(
            "SELECT step FROM assignments WHERE policy = ? AND attempt_id = ?", (policy, attempt_id)
        ).fetchone()
        if taken is not None:
            raise StoreError(
                f"step {step} of policy {policy!r}: attempt {attempt_id!r} already belongs to step {taken[0]}; "
                "nothing is trained twice"
            )
        connection.execute(
            "INSERT INTO assignments(policy, attempt_id, step, position) VALUES (?, ?, ?, ?)",
            (policy, attempt_id, step, position),
        )
    media_table.use_in_step(connection, policy, step, assignment.media)
    waiting.taken(connection, policy, assignment.attempt_ids)
    totals.add(connection, {f"steps/{assignment.state}": 1})
    connection.executemany(
        "INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (policy, step, row.agent, row.policy, row.policy_version, row.outcome, row.reason, row.tokens, row.calls)
            for row in assignment.ledger
        ],
    )


def finish(connection: Connection, policy: str, report: StepReport, state: StepState) -> None:
    """Record how a step ended.

    Raises:
        StoreError: there is no such step, or its state does not allow the change.
    """
    found = connection.execute(
        "SELECT state FROM steps WHERE policy = ? AND step = ?", (policy, report.step)
    ).fetchone()
    if found is None:
        raise StoreError(f"step {report.step} of policy {policy!r} was never assigned")
    if (StepState(found[0]), state) not in _ALLOWED:
        raise StoreError(f"step {report.step} of policy {policy!r} is {found[0]}; it cannot become {state}")
    connection.execute(
        "UPDATE steps SET state = ?, report = ? WHERE policy = ? AND step = ?",
        (state, encode_report(report), policy, report.step),
    )
    if state != found[0]:
        totals.add(connection, {f"steps/{found[0]}": -1, f"steps/{state}": 1})


def select_states(connection: Connection, policy: str) -> dict[int, StepState]:
    """Return the state of every step of a policy in ascending order; nothing else is read."""
    rows = connection.execute("SELECT step, state FROM steps WHERE policy = ? ORDER BY step", (policy,))
    return {step: StepState(state) for step, state in rows}


def select_measure(
    connection: Connection, policy: str, name: str, *, since: int, before: int, newest: int
) -> list[float]:
    """Return the values of one measurement in the steps from ``since`` up to, but not including, ``before``, and of
    these only in the ``newest``, in ascending order of steps."""
    rows = connection.execute(
        "SELECT metrics FROM steps WHERE policy = ? AND step >= ? AND step < ? ORDER BY step DESC LIMIT ?",
        (policy, since, before, newest),
    ).fetchall()
    measured = (decode_metrics(metrics).get(name) for (metrics,) in reversed(rows))
    return [value for value in measured if value is not None]


def last_step(connection: Connection, policy: str) -> int:
    """Return the newest recorded step; 0 if there is none."""
    (last,) = connection.execute("SELECT coalesce(max(step), 0) FROM steps WHERE policy = ?", (policy,)).fetchone()
    return last


def last_done(connection: Connection, policy: str) -> int:
    """Return the newest step that is over, trained or skipped; 0 if there is none."""
    (last,) = connection.execute(
        "SELECT coalesce(max(step), 0) FROM steps WHERE policy = ? AND state != 'assigned'", (policy,)
    ).fetchone()
    return last


def trained_beside(connection: Connection, policy: str, step: int) -> tuple[int, int | None]:
    """Return the last step before ``step`` that changes the weights (0: there is none) and the first one after it."""
    (before,) = connection.execute(
        "SELECT coalesce(max(step), 0) FROM steps WHERE policy = ? AND step < ? AND state != 'skipped'", (policy, step)
    ).fetchone()
    (after,) = connection.execute(
        "SELECT min(step) FROM steps WHERE policy = ? AND step > ? AND state != 'skipped'", (policy, step)
    ).fetchone()
    return before, after


def trained_between(connection: Connection, policy: str, first: int, last: int) -> list[int]:
    """Return the steps from ``first`` to ``last`` that change the weights, ascending."""
    rows = connection.execute(
        "SELECT step FROM steps WHERE policy = ? AND step BETWEEN ? AND ? AND state != 'skipped' ORDER BY step",
        (policy, first, last),
    )
    return [step for (step,) in rows]


def select_without_batch(connection: Connection, policy: str, steps: Collection[int]) -> list[int]:
    """Return those of some steps that changed the weights and whose batches are no longer stored, ascending."""
    rows = connection.execute(
        """SELECT step FROM steps WHERE policy = ? AND step IN (SELECT CAST(value AS BIGINT) FROM json_each(?))
           AND batch IS NULL AND state != 'skipped' ORDER BY step""",
        (policy, json.dumps(sorted(steps))),
    )
    return [step for (step,) in rows]


def select_metrics(connection: Connection, policy: str, steps: Iterable[int]) -> dict[int, dict[str, float]]:
    """Return, for some steps in ascending order, the measurements of a step's attempts from when it was assigned."""
    rows = connection.execute(
        """SELECT step, metrics FROM steps WHERE policy = ? AND step IN (SELECT CAST(value AS BIGINT) FROM json_each(?))
           ORDER BY step""",
        (policy, json.dumps(list(steps))),
    )
    return {step: decode_metrics(metrics) for step, metrics in rows}


def select_steps(
    connection: Connection,
    policy: str,
    *,
    only: int | None = None,
    before: int | None = None,
    after: int | None = None,
    newest: int | None = None,
    oldest: int | None = None,
    ended: bool = False,
    advantages: bool = False,
) -> list[StepRecord]:
    """Return the policy's steps in ascending order.

    Args:
        only: only this step.
        before: only steps before this one.
        after: only steps after this one.
        newest: of these, only this many of the newest.
        oldest: of these, only this many of the oldest.
        ended: only steps that have been trained or skipped.
        advantages: whether to decode the advantages, which are most of a report; otherwise, reports have none.
    """
    first = only if only is not None else 0 if after is None else after + 1
    last = only if only is not None else 2**62 if before is None else before - 1
    limit = newest if newest is not None else ALL if oldest is None else oldest
    order = "ASC" if newest is None else "DESC"
    states = f"AND state != '{StepState.ASSIGNED}'" if ended else ""
    rows = connection.execute(
        f"""SELECT step, state, report, metrics FROM steps WHERE policy = ? AND step BETWEEN ? AND ? {states}
            ORDER BY step {order} LIMIT ?""",
        (policy, first, last, limit),
    ).fetchall()
    return [
        StepRecord(
            step=step,
            state=StepState(state),
            attempt_ids=_attempt_ids(connection, policy, step),
            report=None if report is None else decode_report(report, advantages=advantages),
            metrics=decode_metrics(metrics),
        )
        for step, state, report, metrics in sorted(rows)
    ]


def _attempt_ids(connection: Connection, policy: str, step: int) -> tuple[str, ...]:
    rows = connection.execute(
        "SELECT attempt_id FROM assignments WHERE policy = ? AND step = ? ORDER BY position", (policy, step)
    )
    return tuple(attempt_id for (attempt_id,) in rows)


def select_batches(
    connection: Connection, policy: str, *, after: int = -1, only: int | None = None
) -> list[TrainingBatch]:
    """Return the batches of steps after ``after`` (or of one step), in order; steps without a batch are left out."""
    first, last = (after + 1, 2**62) if only is None else (only, only)
    rows = connection.execute(
        """SELECT batch FROM steps WHERE policy = ? AND step BETWEEN ? AND ?
           AND batch IS NOT NULL AND state != 'skipped' ORDER BY step""",
        (policy, first, last),
    )
    return [decode_batch(body) for (body,) in rows]


def select_ledger(
    connection: Connection, policy: str, step: int | None, *, since: int = 0, before: int | None = None
) -> list[LedgerRow]:
    """Return the ledger rows of one step, or of the policy's steps from ``since`` up to, but not including, ``before``,
    as recorded."""
    first, last = (since, 2**62 if before is None else before - 1) if step is None else (step, step)
    rows = connection.execute(
        """SELECT agent, policy, policy_version, outcome, reason, tokens, calls FROM ledger
           WHERE step_policy = ? AND step BETWEEN ? AND ? ORDER BY step, rowid""",
        (policy, first, last),
    )
    return [
        LedgerRow(
            agent=agent,
            policy=row_policy,
            policy_version=version,
            outcome=Outcome(outcome),
            reason=reason,
            tokens=tokens,
            calls=calls,
        )
        for agent, row_policy, version, outcome, reason, tokens, calls in rows
    ]


def select_consumed(
    connection: Connection,
    *,
    attempt_ids: Collection[str] = (),
    rollout_ids: Collection[str] = (),
    response_ids: Collection[str] = (),
    policy: str | None = None,
) -> dict[str, int]:
    """Return the consuming step by attempt id, for attempts that are given by id, as the last attempt of a rollout, or
    by one of their responses.

    With ``policy``, only this policy's steps count.

    A rollout's reward belongs to its last attempt, so an earlier attempt that was consumed does not count.
    """
    names = (json.dumps(sorted(names)) for names in (attempt_ids, rollout_ids, response_ids))
    rows = connection.execute(_CONSUMED, (*names, policy))
    return dict(rows.fetchall())


_CONSUMED = """
    WITH named(attempt_id) AS (
        SELECT value FROM json_each(?1)
        UNION SELECT (SELECT attempt_id FROM attempts WHERE rollout_id = value
                      ORDER BY started_ns DESC, attempt_id DESC LIMIT 1) FROM json_each(?2)
        UNION SELECT attempt_id FROM spans
            WHERE response_id IN (SELECT value FROM json_each(?3)) AND attempt_id IS NOT NULL)
    SELECT attempt_id, min(step) FROM assignments WHERE attempt_id IN (SELECT attempt_id FROM named)
    AND (?4 IS NULL OR policy = ?4)
    GROUP BY attempt_id ORDER BY attempt_id"""
