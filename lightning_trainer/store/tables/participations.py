"""Which policies answered calls of which attempts, according to records of the gateway or of trusted engines, and for
which policies attempts were made: a run's groups belong to the run's policies, whichever were called in them.

This matters if there are several policies, or one that also trains on earlier recordings: a step takes the groups that
its policy took part in. Another table has the first start of each policy: attempts that had begun by then count as
earlier ones.
"""

from collections.abc import Callable, Iterable, Sequence

from lightning_instrumentation import semconv

from lightning_trainer.otlp.span_codec import decode_resource, decode_span
from lightning_trainer.store.connection import Connection, has_table
from lightning_trainer.store.tables import totals
from lightning_trainer.types import Span


def note(connection: Connection, spans: Iterable[Span]) -> list[tuple[str, str]]:
    """Record the participations in newly stored spans; idempotent. Return the new pairs of policy and attempt id."""
    seen = {
        (policy, attempt_id)
        for span in spans
        if isinstance(attempt_id := span.attributes.get(semconv.ATTEMPT_ID), str)
        for policy in _policies(span)
    }
    return put(connection, seen)


def _policies(span: Span) -> Sequence[str]:
    if span.scope == semconv.GATEWAY_SCOPE:
        policy = span.attributes.get(semconv.POLICY)
        return (policy,) if isinstance(policy, str) else ()
    made_for = span.attributes.get(semconv.ROLLOUT_POLICIES)
    return tuple(one for one in made_for if isinstance(one, str)) if isinstance(made_for, tuple) else ()


def put(connection: Connection, seen: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Record pairs of a policy and the id of an attempt in which it took part; return the pairs that were new."""
    insert = "INSERT INTO participations(policy, attempt_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
    return [one for one in sorted(seen) if connection.execute(insert, one).rowcount]


def find(
    connection: Connection, takes_part: Callable[[Span], bool], *, after: int = 0, most: int = 20_000
) -> tuple[set[str], int]:
    """Return the attempts with a call that ``takes_part`` accepts among the first ``most`` spans stored after row
    ``after``, and the last row examined; records of the gateway are not examined."""
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()
    last = min(last, after + most)
    rows = connection.execute(
        """SELECT attempt_id, spans.body, scope, resources.body FROM spans JOIN resources ON resources.id = resource_id
           WHERE seq > ? AND seq <= ? AND attempt_id IS NOT NULL AND operation IS NOT NULL AND scope != ?""",
        (after, last, semconv.GATEWAY_SCOPE),
    )
    found: set[str] = set()
    for attempt_id, body, scope, resource in rows:
        if attempt_id not in found and takes_part(decode_span(body, scope=scope, resource=decode_resource(resource))):
            found.add(attempt_id)
    return found, last


def begin(connection: Connection, policy: str) -> int | None:
    """Record that a policy is started; return how many rollouts preceded its first start, None at later starts."""
    new = connection.execute(
        """INSERT INTO policies(policy, last_seq) SELECT ?, coalesce(max(seq), 0) FROM spans WHERE true
           ON CONFLICT DO NOTHING""",
        (policy,),
    ).rowcount
    return totals.count(connection)["rollouts"] if new else None


def started_from(connection: Connection, policy: str) -> str | None:
    """Return the mark of the model that a policy started from; None if it is not recorded."""
    row = connection.execute("SELECT model FROM policies WHERE policy = ?", (policy,)).fetchone()
    return None if row is None else row[0]


def start_from(connection: Connection, policy: str, model: str) -> None:
    """Record the mark of the model that a policy starts from; ``begin`` must have recorded the policy."""
    connection.execute("UPDATE policies SET model = ? WHERE policy = ?", (model, policy))


def is_untrained(connection: Connection, policy: str) -> bool:
    """Whether a policy has no weights except those that it started from."""
    row = connection.execute(
        """SELECT 1 FROM versions WHERE policy = ?1 AND version > 0
           UNION ALL SELECT 1 FROM steps WHERE policy = ?1 AND state != 'skipped' LIMIT 1""",
        (policy,),
    ).fetchone()
    return row is None


def begin_anew(connection: Connection, policy: str, model: str) -> None:
    """Start an untrained policy over from another model: what the earlier model answered then counts as recorded before
    the policy's start, and no longer belongs to a version of the policy."""
    connection.execute(
        "UPDATE policies SET model = ?, last_seq = (SELECT coalesce(max(seq), 0) FROM spans) WHERE policy = ?",
        (model, policy),
    )
    connection.execute(
        """DELETE FROM waiting WHERE policy = ? AND EXISTS
           (SELECT 1 FROM spans WHERE spans.attempt_id = waiting.attempt_id AND scope = ?)""",
        (policy, semconv.GATEWAY_SCOPE),
    )
    connection.execute("DELETE FROM verdicts WHERE policy = ?", (policy,))


def last_earlier(connection: Connection, policy: str | None) -> int | None:
    """Return the last span stored before a policy was first started; None if it was never started.

    In a store of an early schema, opened read-only, no attempt counts as earlier.
    """
    if not has_table(connection, "policies"):
        return 0
    row = connection.execute("SELECT last_seq FROM policies WHERE policy = ?", (policy,)).fetchone()
    return None if row is None else row[0]


def is_earlier(connection: Connection, policy: str, attempt_id: str) -> bool:
    """Whether an attempt was recorded before a policy was first started; True if the policy was never started."""
    last = last_earlier(connection, policy)
    found = connection.execute(
        "SELECT 1 FROM spans WHERE attempt_id = ?1 AND (?2 IS NULL OR seq <= ?2) LIMIT 1", (attempt_id, last)
    ).fetchone()
    return found is not None
