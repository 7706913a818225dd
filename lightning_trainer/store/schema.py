"""The tables, as a list of migrations: entry ``i`` takes a file from schema ``i`` to ``i + 1`` (SQLite's user_version).

An entry that has been released is never edited; a change is a new entry.
"""

import sqlite3

from lightning_trainer.errors import StoreError

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE resources (
        id   INTEGER PRIMARY KEY,
        body BLOB NOT NULL UNIQUE               -- OTLP Resource, attributes sorted by name
    );
    CREATE TABLE spans (
        seq            INTEGER PRIMARY KEY,     -- order of arrival
        trace_id       TEXT NOT NULL,
        span_id        TEXT NOT NULL,
        parent_span_id TEXT,
        name           TEXT NOT NULL,
        start_ns       INTEGER NOT NULL,
        end_ns         INTEGER NOT NULL,
        rollout_id     TEXT,
        attempt_id     TEXT,
        operation      TEXT,
        response_id    TEXT,
        scope          TEXT NOT NULL,
        resource_id    INTEGER NOT NULL REFERENCES resources(id),
        body           BLOB NOT NULL,           -- OTLP Span
        UNIQUE (trace_id, span_id)
    );
    CREATE INDEX spans_of_rollout  ON spans(rollout_id)  WHERE rollout_id  IS NOT NULL;
    CREATE INDEX spans_of_attempt  ON spans(attempt_id)  WHERE attempt_id  IS NOT NULL;
    CREATE INDEX spans_of_response ON spans(response_id) WHERE response_id IS NOT NULL;
    CREATE INDEX gateway_calls     ON spans(start_ns)    WHERE scope = 'lightning.gateway';

    CREATE TABLE attempts (
        attempt_id   TEXT PRIMARY KEY,
        rollout_id   TEXT NOT NULL,
        task_id      TEXT,
        group_id     TEXT,
        mode         TEXT,
        state        TEXT NOT NULL,
        started_ns   INTEGER NOT NULL,
        ended_ns     INTEGER,
        error        TEXT,
        root_span_id TEXT
    ) WITHOUT ROWID;
    CREATE INDEX attempts_of_rollout ON attempts(rollout_id);
    CREATE INDEX attempts_by_end     ON attempts(ended_ns) WHERE ended_ns IS NOT NULL;

    CREATE TABLE steps (
        policy  TEXT NOT NULL,
        step    INTEGER NOT NULL,
        state   TEXT NOT NULL,
        batch   BLOB,                           -- batch_codec.py
        report  BLOB,                           -- batch_codec.py
        metrics TEXT NOT NULL,                  -- JSON
        PRIMARY KEY (policy, step)
    );
    CREATE TABLE assignments (                  -- the key is what keeps an attempt from being trained twice
        policy     TEXT NOT NULL,
        attempt_id TEXT NOT NULL REFERENCES attempts(attempt_id),
        step       INTEGER NOT NULL,
        position   INTEGER NOT NULL,
        PRIMARY KEY (policy, attempt_id),
        FOREIGN KEY (policy, step) REFERENCES steps(policy, step)
    ) WITHOUT ROWID;
    CREATE INDEX assignments_of_step ON assignments(policy, step, position);
    CREATE INDEX assignments_of_attempt ON assignments(attempt_id);

    CREATE TABLE ledger (
        step_policy    TEXT NOT NULL,
        step           INTEGER NOT NULL,
        agent          TEXT NOT NULL,
        policy         TEXT,
        policy_version INTEGER,
        outcome        TEXT NOT NULL,
        reason         TEXT NOT NULL,
        tokens         INTEGER NOT NULL,
        calls          INTEGER NOT NULL,
        FOREIGN KEY (step_policy, step) REFERENCES steps(policy, step)
    );
    CREATE INDEX ledger_of_step ON ledger(step_policy, step);

    CREATE TABLE versions (
        policy         TEXT NOT NULL,
        version        INTEGER NOT NULL,
        step           INTEGER NOT NULL,
        state          TEXT NOT NULL,
        created_ns     INTEGER NOT NULL,
        checksum       TEXT,
        probe_max_abs  REAL,
        probe_mean_abs REAL,
        publish_s      REAL,
        reason         TEXT,
        PRIMARY KEY (policy, version)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX one_live_version ON versions(policy) WHERE state = 'live';
    """,
    """
    CREATE TABLE arrivals (
        attempt_id TEXT NOT NULL,
        numbering  TEXT NOT NULL,
        arrived    INTEGER NOT NULL,
        started    INTEGER NOT NULL,
        PRIMARY KEY (attempt_id, numbering)
    ) WITHOUT ROWID;
    CREATE INDEX incomplete ON arrivals(attempt_id) WHERE arrived < started;
    """,
    """
    CREATE TABLE rollbacks (
        seq        INTEGER PRIMARY KEY,
        policy     TEXT NOT NULL,
        after_step INTEGER NOT NULL,            -- the newest step that was recorded then
        version    INTEGER NOT NULL,            -- whose weights the next step goes on from
        at_ns      INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE participations (               -- of attempts whose gateway records came after this table was made
        policy     TEXT NOT NULL,
        attempt_id TEXT NOT NULL,
        PRIMARY KEY (policy, attempt_id)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE policies (
        policy   TEXT PRIMARY KEY,
        last_seq INTEGER NOT NULL               -- of the spans that were there when it was first started
    ) WITHOUT ROWID;
    INSERT INTO policies SELECT policy, 0 FROM versions UNION SELECT policy, 0 FROM steps;
    """,
)


def migrate(connection: sqlite3.Connection, *, where: str) -> None:
    """Bring a file to the newest schema; each step is one transaction, so a crash between two of them is harmless.

    Raises:
        StoreError: the file was written by a newer lightning-trainer.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store {where} has schema {version}, this lightning-trainer knows up to {len(MIGRATIONS)}: "
            "upgrade lightning-trainer, or choose another state_dir"
        )
    for target, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {target}; COMMIT;")
