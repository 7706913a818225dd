"""Repair: a damaged store is rewritten with everything readable; the damaged file is set aside, not deleted."""

import sqlite3
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from lightning_trainer.errors import StoreError
from lightning_trainer.otlp.span_codec import decode_span, encode_resource
from lightning_trainer.store.batch_codec import decode_batch
from lightning_trainer.store.retention.retention import measure
from lightning_trainer.store.schema import MIGRATIONS, migrate
from lightning_trainer.store.tables import arrivals, attempts, feedback, participations
from lightning_trainer.store.upkeep.check import Reading
from lightning_trainer.store.upkeep.files import STORE, enough_room, held, put_in_place, set_aside
from lightning_trainer.store.worklist import waiting

_BY_NUMBER = {
    "resources": "id",
    "steps": "rowid",
    "ledger": "rowid",
    "rollbacks": "seq",
    "received": "seq",
    "evaluations": "change",
    "feedback": "seq",
    "media": "seq",
    "prompts": "rowid",
}
_BY_KEY = {
    "attempts": "attempt_id",
    "assignments": "policy, attempt_id",
    "arrivals": "attempt_id, numbering",
    "participations": "policy, attempt_id",
    "outer_traces": "trace_id, attempt_id",
    "policies": "policy",
    "pauses": "policy",
    "versions": "policy, version",
    "waiting": "policy, attempt_id",
    "drops": "attempt_id",
    "expired": "attempt_id",
    "verdicts": "policy, attempt_id",
    "cursors": "name",
    "settled": "target, number",
    "forgotten": "source",
    "canaries": "policy, version",
    "media_uses": "holder, hash",
}


@dataclass(slots=True)
class Repaired:
    """What was kept and what was lost."""

    aside: Path
    rows: dict[str, int] = field(default_factory=dict)
    """Rows kept, by table."""
    lost: dict[str, list[str]] = field(default_factory=dict)
    """The damaged places, by table; only tables of which something could not be read."""
    sentences: list[str] = field(default_factory=list)
    """The consequences, one sentence each."""


def repair(state_dir: Path, newest_checkpoints: Mapping[str, int]) -> Repaired:
    """Rewrite the store from what can be read.

    Args:
        newest_checkpoints: the step of each policy's newest checkpoint; later steps whose batches are lost cannot be
            repeated.

    Raises:
        StoreError: a daemon has the store, there is none, there is no room, or nothing of it can be read; then it is
            unchanged.
    """
    store = state_dir / STORE
    if not store.is_file():
        raise StoreError(f"there is no store {store}")
    with held(store):
        repaired = Repaired(aside=store)
        partial = store.with_name(f"{STORE}.repairing")
        for suffix in ("", "-journal", "-wal", "-shm"):
            partial.with_name(partial.name + suffix).unlink(missing_ok=True)
        try:
            with (
                closing(sqlite3.connect(store, isolation_level=None, timeout=30)) as old,
                closing(sqlite3.connect(partial, isolation_level=None)) as new,
            ):
                size = measure(old, store)  # of the pages that the header names, which may be damaged too
                enough_room(state_dir, min(size.used, store.stat().st_size + size.log), "repairing")
                _write_anew(old, new, repaired, newest_checkpoints, where=str(store))
        except sqlite3.Error as error:
            partial.unlink(missing_ok=True)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise StoreError(
                    f"there is no room in {state_dir} for the repaired store ({error}); {store} stays as it is: make "
                    "room and repair again"
                ) from error
            raise StoreError(
                f"nothing of the store {store} can be read ({error}): `lightning-trainer store restore` goes back to a "
                "backup"
            ) from error
        repaired.aside = set_aside(store, "damaged")
        put_in_place(partial, store)
    return repaired


def _write_anew(
    old: sqlite3.Connection,
    new: sqlite3.Connection,
    repaired: Repaired,
    newest_checkpoints: Mapping[str, int],
    *,
    where: str,
) -> None:
    (version,) = old.execute("PRAGMA user_version").fetchone()
    if not 1 <= version <= len(MIGRATIONS):
        raise StoreError(f"the store {where} has schema {version}, which cannot be repaired: go back to a backup")
    new.execute("PRAGMA page_size=8192")
    new.execute("PRAGMA auto_vacuum=INCREMENTAL")
    new.execute("PRAGMA foreign_keys=OFF")
    for target, script in enumerate(MIGRATIONS[:version], start=1):
        new.executescript(f"BEGIN; {script} PRAGMA user_version = {target}; COMMIT;")
    new.execute("BEGIN")
    for table, key in (*_BY_NUMBER.items(), *_BY_KEY.items()):
        if _has(new, table):
            _copy(old, new, table, key, repaired, by_number=table in _BY_NUMBER)
    _copy_spans(old, new, repaired)
    new.execute("COMMIT")
    migrate(new, where=where)
    new.execute("BEGIN")
    _mend(new, repaired, newest_checkpoints)
    _count(new)
    new.execute("COMMIT")
    new.execute("ANALYZE")


def _has(connection: sqlite3.Connection, table: str) -> bool:
    return (
        connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
        is not None
    )


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _copy(
    old: sqlite3.Connection, new: sqlite3.Connection, table: str, key: str, repaired: Repaired, *, by_number: bool
) -> None:
    new.execute(f"DELETE FROM {table}")
    columns = _columns(new, table)
    reading = Reading(old, table, ", ".join(columns))
    rows = (row[1:] for row in reading.by_number(key)) if by_number else reading.by_key(key)
    insert = f"INSERT OR IGNORE INTO {table}({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for row in rows:
        new.execute(insert, row)
    _note(reading, repaired)


def _copy_spans(old: sqlite3.Connection, new: sqlite3.Connection, repaired: Repaired) -> None:
    columns = _columns(new, "spans")
    reading = Reading(old, "spans", ", ".join(columns))
    body, checksum = columns.index("body"), columns.index("checksum") if "checksum" in columns else None
    insert = f"INSERT OR IGNORE INTO spans({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for _, *row in reading.by_number("seq"):
        if checksum is not None and row[checksum] is not None and zlib.crc32(row[body]) != row[checksum]:
            reading.damaged.append(f"row {row[0]}: its bytes are not those that were stored")
            reading.read -= 1
            continue
        new.execute(insert, row)
    _note(reading, repaired)


def _note(reading: Reading, repaired: Repaired) -> None:
    repaired.rows[reading.table] = reading.read
    if reading.damaged:
        repaired.lost[reading.table] = reading.damaged


def _mend(new: sqlite3.Connection, repaired: Repaired, newest_checkpoints: Mapping[str, int]) -> None:
    """Restore the consistency of what was kept."""
    for (resource_id,) in new.execute(
        "SELECT DISTINCT resource_id FROM spans WHERE resource_id NOT IN (SELECT id FROM resources)"
    ).fetchall():
        new.execute(
            "INSERT INTO resources VALUES (?, ?)", (resource_id, encode_resource({"lightning.lost": resource_id}))
        )
    if {"attempts", "arrivals", "participations", "outer_traces"} & repaired.lost.keys():
        _tell_again(new, repaired)
    if "waiting" in repaired.lost:
        waiting.enroll_again(new)
        repaired.sentences.append("which attempts wait for a step is found out anew at the next start")
    for table in ("assignments", "ledger"):
        policy = "policy" if table == "assignments" else "step_policy"
        new.execute(f"DELETE FROM {table} WHERE ({policy}, step) NOT IN (SELECT policy, step FROM steps)")
    new.execute("DELETE FROM assignments WHERE attempt_id NOT IN (SELECT attempt_id FROM attempts)")
    if {"assignments", "steps"} & repaired.lost.keys():
        # What the steps had consumed must not be trained twice, and the record of it is no longer complete.
        new.execute("DELETE FROM waiting")
        new.execute("UPDATE policies SET enrolled = NULL, last_seq = (SELECT coalesce(max(seq), 0) FROM spans)")
        repaired.sentences.append(
            "which attempts the steps had consumed cannot all be read, so none that was recorded until now is trained"
        )
    _skip_what_cannot_be_repeated(new, repaired, newest_checkpoints)


def _tell_again(new: sqlite3.Connection, repaired: Repaired) -> None:
    """Rebuild lost rows of attempts, and of other tables about attempts, from the spans."""
    known = {attempt_id for (attempt_id,) in new.execute("SELECT attempt_id FROM attempts")}
    uncounted = "arrivals" in repaired.lost
    if uncounted:
        new.execute("DELETE FROM arrivals")  # the spans of the rows that are left would be counted twice
    others_lost = bool({"participations", "outer_traces"} & repaired.lost.keys())
    rows = new.execute("SELECT attempt_id, body, scope FROM spans WHERE attempt_id IS NOT NULL ORDER BY attempt_id")
    told = 0
    for attempt_id, body, scope in rows.fetchall():
        missing = attempt_id not in known
        if not (missing or uncounted or others_lost):
            continue
        span = decode_span(body, scope=scope, resource={})
        if missing:
            attempts.upsert(new, [span])
        if missing or uncounted:
            arrivals.count(new, [span])
        participations.note(new, [span])
        feedback.note_outer_traces(new, [span])
        told += 1
    if told:
        repaired.sentences.append(f"what {told} spans say of their attempts was read from them again")


def _skip_what_cannot_be_repeated(
    new: sqlite3.Connection, repaired: Repaired, newest_checkpoints: Mapping[str, int]
) -> None:
    _stand_in_for_lost_steps(new)
    rows = new.execute(
        "SELECT policy, step, batch FROM steps WHERE state != 'skipped' ORDER BY policy, step"
    ).fetchall()
    lost: dict[str, int] = {}
    for policy, step, batch in rows:
        if step > newest_checkpoints.get(policy, 0) and policy not in lost and not _sound(batch):
            lost[policy] = step
    for policy, step in lost.items():
        new.execute("UPDATE steps SET state = 'skipped' WHERE policy = ? AND step >= ?", (policy, step))
        repaired.sentences.append(
            f"step {step} of policy {policy!r} cannot be repeated, nor can those behind it: training goes on before it"
        )


def _stand_in_for_lost_steps(new: sqlite3.Connection) -> None:
    """Insert a placeholder for each missing number: steps are numbered without gaps, so a gap is a lost step."""
    newest = new.execute("SELECT policy, max(step) FROM steps GROUP BY policy").fetchall()
    for policy, last in newest:
        known = {step for (step,) in new.execute("SELECT step FROM steps WHERE policy = ?", (policy,))}
        made = {version for (version,) in new.execute("SELECT version FROM versions WHERE policy = ?", (policy,))}
        for step in set(range(1, max(last, max(made, default=0)) + 1)) - known:
            state = "trained" if step in made else "skipped"
            new.execute("INSERT INTO steps VALUES (?, ?, ?, NULL, NULL, '{}')", (policy, step, state))


def _sound(batch: bytes | None) -> bool:
    return batch is not None and _decodes(batch, decode_batch)


def _decodes(body: bytes, decode: Callable[[bytes], object]) -> bool:
    try:
        decode(body)
    except Exception:  # whatever is wrong with it, it cannot be trained on
        return False
    return True


def _count(new: sqlite3.Connection) -> None:
    """Recount the totals; earlier deletions are no longer known."""
    new.execute("DELETE FROM totals")
    new.execute(
        """INSERT INTO totals SELECT 'spans', count(*) FROM spans
           UNION ALL SELECT 'calls', count(*) FROM spans WHERE scope = 'lightning.gateway'
           UNION ALL SELECT 'rollouts', count(DISTINCT rollout_id) FROM attempts
           UNION ALL SELECT 'attempts/' || state, count(*) FROM attempts GROUP BY state
           UNION ALL SELECT 'steps/' || state, count(*) FROM steps GROUP BY state
           UNION ALL SELECT 'media', count(*) FROM media
           UNION ALL SELECT 'media_bytes', coalesce(sum(size), 0) FROM media"""
    )
