"""Taking something out of training, with a reason; what was already trained stays trained.

The next step takes a dropped attempt and accounts for its tokens as ``dropped``; if several policies took part in the
attempt and some have trained it, the next step of each of the others does. A step that is recorded but not trained yet
becomes a skipped one, and its tokens are ``dropped`` in its own ledger.
"""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from lightning_trainer.errors import DropError
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepState
from lightning_trainer.store.tables import totals
from lightning_trainer.store.worklist import waiting
from lightning_trainer.types import Attempt, RolloutMode


class Kind(StrEnum):
    """What can be dropped."""

    ROLLOUT = "rollout"
    GROUP = "group"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was taken out."""

    kind: Kind
    name: str
    attempts: int
    """Attempts that are out now."""
    already: int
    """How many of these were out before."""
    trained: dict[str, int]
    """Attempts that a step had consumed before, with that step, which is not changed. Those that another policy would
    still have taken also count in ``attempts``."""


def reason_of(connection: Connection, attempt_id: str) -> str | None:
    """Return why an attempt was taken out; None if it was not."""
    row = connection.execute("SELECT reason FROM drops WHERE attempt_id = ?", (attempt_id,)).fetchone()
    return None if row is None else row[0]


def before_drop(connection: Connection, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return attempts with the modes that they had before they were taken out, as the step that took them knew them."""
    dropped = [one.attempt_id for one in attempts if one.mode is RolloutMode.DROPPED]
    rows = connection.execute(
        """SELECT attempt_id, coalesce(mode, 'train') FROM attempts
           WHERE attempt_id IN (SELECT value FROM json_each(?))""",
        (json.dumps(dropped),),
    )
    modes = {attempt_id: RolloutMode(mode) for attempt_id, mode in rows}
    return [replace(one, mode=modes.get(one.attempt_id, one.mode)) for one in attempts]


def among(connection: Connection, attempt_ids: Collection[str]) -> set[str]:
    """Return those of some attempts that were taken out."""
    rows = connection.execute(
        "SELECT attempt_id FROM drops WHERE attempt_id IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted(attempt_ids)),),
    )
    return {attempt_id for (attempt_id,) in rows}


def count(connection: Connection) -> int:
    """Return how many attempts were taken out."""
    return connection.execute("SELECT count(*) FROM drops").fetchone()[0]


def attempt_ids(connection: Connection) -> set[str]:
    """Return the ids of all attempts that were taken out."""
    return {attempt_id for (attempt_id,) in connection.execute("SELECT attempt_id FROM drops")}


def drop(
    connection: Connection, name: str, *, reason: str, kind: Kind | None = None, policy: str | None = None
) -> Dropped:
    """Take out a rollout (by its or an attempt's id), a group, or a step (``12``, ``POLICY@12``); idempotent.

    Args:
        reason: for display.
        kind: the kind of thing that ``name`` names; required only if the name is ambiguous.
        policy: the policy whose step it is, if there are several policies.

    Raises:
        DropError: there is nothing of that name, it is ambiguous, or no policy would still train any of it.
    """
    found = {one: ids for one in Kind if kind in (None, one) and (ids := _named(connection, one, name, policy))}
    if not found:
        what = " or ".join(Kind) if kind is None else kind
        raise DropError(f"there is no {what} {name!r} in the store; `lightning-trainer explain` lists rollouts")
    if len(found) > 1:
        raise DropError(f"{name!r} is the name of a {' and of a '.join(found)}; say which with --kind")
    ((what, ids),) = found.items()
    if what is Kind.STEP:
        return _drop_step(connection, *ids, reason=reason)
    return _drop_attempts(connection, what, name, ids, reason)


def _named(connection: Connection, kind: Kind, name: str, policy: str | None) -> tuple:
    """Return the matching attempts, or the policy and the number of the matching step."""
    match kind:
        case Kind.ROLLOUT:
            rows = connection.execute(
                "SELECT attempt_id FROM attempts WHERE rollout_id = ?1 OR attempt_id = ?1", (name,)
            )
        case Kind.GROUP:
            rows = connection.execute(
                """SELECT attempt_id FROM attempts WHERE coalesce(group_id, task_id, rollout_id) = ?
                   AND group_id IS NOT NULL""",
                (name,),
            )
        case Kind.STEP:
            return _step(connection, name, policy)
    return tuple(attempt_id for (attempt_id,) in rows)


def _step(connection: Connection, name: str, policy: str | None) -> tuple:
    named, _, number = name.rpartition("@")
    number = number.removeprefix("step-")
    if not (number.isascii() and number.isdigit() and len(number) < 12):
        return ()
    rows = connection.execute(
        "SELECT policy, step FROM steps WHERE step = ?1 AND (?2 IS NULL OR policy = ?2)", (int(number), named or policy)
    ).fetchall()
    if len(rows) > 1:
        raise DropError(f"there is a step {number} of {', '.join(row[0] for row in rows)}; name one as POLICY@{number}")
    return tuple(rows[0]) if rows else ()


def _drop_attempts(connection: Connection, kind: Kind, name: str, attempt_ids: Sequence[str], reason: str) -> Dropped:
    rows = connection.execute(
        """SELECT attempt_id, policy, step, state FROM assignments JOIN steps USING (policy, step)
           WHERE attempt_id IN (SELECT value FROM json_each(?)) ORDER BY attempt_id""",
        (json.dumps(list(attempt_ids)),),
    ).fetchall()
    out = {attempt_id for attempt_id in attempt_ids if reason_of(connection, attempt_id) is not None}
    consumed = {attempt_id: step for attempt_id, _, step, _ in rows if attempt_id not in out}
    wanted = waiting.wanted(connection, consumed)
    left = [attempt_id for attempt_id in attempt_ids if attempt_id not in consumed or attempt_id in wanted]
    if not left:
        _, policy, step, state = next((row for row in rows if row[-1] == StepState.TRAINED), rows[0])
        raise DropError(
            f"{kind} {name!r} is in step {step} of policy {policy!r}, which is {state}: "
            + (
                "what was trained cannot be taken out; `lightning-trainer rollback` goes back to a version before it"
                if state == StepState.TRAINED
                else f"drop the step instead ({policy}@{step})"
                if state == StepState.ASSIGNED
                else "nothing of it was trained"
            )
        )
    connection.executemany(
        "INSERT INTO drops VALUES (?, ?, ?) ON CONFLICT DO NOTHING", [(one, reason, time.time_ns()) for one in left]
    )
    # The attempts are woken, so that the next step accounts for them.
    connection.executemany("UPDATE waiting SET resting = 0 WHERE attempt_id = ?", [(one,) for one in left])
    return Dropped(kind, name, len(left), len(out), consumed)


def _drop_step(connection: Connection, policy: str, step: int, *, reason: str) -> Dropped:
    (state,) = connection.execute("SELECT state FROM steps WHERE policy = ? AND step = ?", (policy, step)).fetchone()
    if state == StepState.TRAINED:
        raise DropError(
            f"step {step} of policy {policy!r} is trained: what was trained cannot be taken out; `lightning-trainer "
            f"rollback` goes back to a version before {step}"
        )
    rows = connection.execute("SELECT attempt_id FROM assignments WHERE policy = ? AND step = ?", (policy, step))
    attempt_ids = [attempt_id for (attempt_id,) in rows]
    if state == StepState.SKIPPED:
        out = sum(reason_of(connection, attempt_id) is not None for attempt_id in attempt_ids)
        return Dropped(Kind.STEP, f"{policy}@{step}", len(attempt_ids), out, {})
    connection.execute("UPDATE steps SET state = 'skipped' WHERE policy = ? AND step = ?", (policy, step))
    totals.add(connection, {f"steps/{StepState.ASSIGNED}": -1, f"steps/{StepState.SKIPPED}": 1})
    connection.execute(
        """UPDATE ledger SET outcome = 'dropped', reason = ? WHERE step_policy = ? AND step = ?
           AND outcome IN ('trained', 'masked')""",
        (Reason.TAKEN_OUT.value, policy, step),
    )
    connection.executemany(
        "INSERT INTO drops VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        [(one, reason, time.time_ns()) for one in attempt_ids],
    )
    return Dropped(Kind.STEP, f"{policy}@{step}", len(attempt_ids), 0, {})
