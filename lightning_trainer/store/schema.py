"""The tables, as a list of migrations: entry ``i`` takes a file from schema ``i`` to ``i + 1`` (SQLite's user_version).

An entry that has been released is never edited; a change is a new entry.
"""

import sqlite3

from lightning_trainer.errors import UnusableStoreError

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
    """
    ALTER TABLE spans ADD COLUMN checksum INTEGER;  -- CRC-32 of body; NULL: stored before it was kept
    DROP INDEX gateway_calls;
    CREATE INDEX attempts_of_group ON attempts(coalesce(group_id, task_id, rollout_id));
    CREATE INDEX attempts_of_task  ON attempts(task_id) WHERE task_id IS NOT NULL;
    CREATE INDEX attempts_by_start ON attempts(started_ns);
    CREATE INDEX states_of_steps   ON steps(policy, step, state);
    CREATE INDEX steps_with_batch  ON steps(policy, step) WHERE batch IS NOT NULL;

    ALTER TABLE policies ADD COLUMN enrolled TEXT;  -- which attempts wait for it: waiting.py; NULL: none are noted yet
    CREATE TABLE waiting (                      -- ended attempts that a step of the policy may still take
        policy     TEXT NOT NULL,
        attempt_id TEXT NOT NULL,
        group_key  TEXT NOT NULL,
        task_key   TEXT NOT NULL,
        since_ns   INTEGER NOT NULL,            -- by our clock
        resting    INTEGER NOT NULL DEFAULT 0,  -- 1: let go until its group or task is heard of again
        PRIMARY KEY (policy, attempt_id)
    ) WITHOUT ROWID;
    CREATE INDEX waiting_awake    ON waiting(policy, attempt_id) WHERE resting = 0;
    CREATE INDEX resting_of_group ON waiting(policy, group_key)  WHERE resting = 1;
    CREATE INDEX resting_of_task  ON waiting(policy, task_key)   WHERE resting = 1;
    CREATE INDEX waiting_attempt  ON waiting(attempt_id);
    CREATE TABLE drops (                        -- attempts that a user took out of what will be trained
        attempt_id TEXT PRIMARY KEY,
        reason     TEXT NOT NULL,
        at_ns      INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE totals (                       -- what is held and what was deleted, by name: totals.py
        name  TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) WITHOUT ROWID;
    INSERT INTO totals SELECT 'spans', count(*) FROM spans
        UNION ALL SELECT 'calls', count(*) FROM spans WHERE scope = 'lightning.gateway'
        UNION ALL SELECT 'rollouts', count(DISTINCT rollout_id) FROM attempts
        UNION ALL SELECT 'attempts/' || state, count(*) FROM attempts GROUP BY state
        UNION ALL SELECT 'steps/' || state, count(*) FROM steps GROUP BY state;

    CREATE TABLE received (                     -- a mark now and then: spans up to seq had come by then, by our clock
        seq   INTEGER PRIMARY KEY,
        at_ns INTEGER NOT NULL
    );
    INSERT INTO received SELECT max(seq), 1000000000 * CAST(strftime('%s', 'now') AS INTEGER) FROM spans
        WHERE EXISTS (SELECT 1 FROM spans);
    CREATE TABLE expired (                      -- attempts whose spans were deleted: what comes again is not stored
        attempt_id TEXT PRIMARY KEY,
        at_ns      INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX expired_by_time ON expired(at_ns);

    CREATE TABLE evaluations (                  -- evaluation attempts, numbered anew whenever something of one comes
        change     INTEGER PRIMARY KEY,
        attempt_id TEXT NOT NULL UNIQUE
    );
    INSERT INTO evaluations(attempt_id) SELECT attempt_id FROM attempts WHERE mode = 'evaluate' ORDER BY ended_ns;
    CREATE TABLE verdicts (                     -- what each says of the one version that sampled it
        policy     TEXT NOT NULL,
        attempt_id TEXT NOT NULL,
        version    INTEGER NOT NULL,
        reward     REAL NOT NULL,
        PRIMARY KEY (policy, attempt_id)
    ) WITHOUT ROWID;
    CREATE INDEX verdicts_of_version ON verdicts(policy, version, reward);
    CREATE TABLE cursors (                      -- how far a reader that goes on where it was has come: cursors.py
        name     TEXT PRIMARY KEY,
        position INTEGER NOT NULL,
        about    TEXT NOT NULL                  -- the settings that it read with; with others it begins anew
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE pauses (                       -- policies whose training a user has paused
        policy TEXT PRIMARY KEY,
        reason TEXT NOT NULL,
        at_ns  INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE feedback (                     -- what people and systems say, beside the spans that brought it
        seq         INTEGER PRIMARY KEY,        -- order of arrival
        trace_id    TEXT NOT NULL,
        span_id     TEXT NOT NULL,
        source      TEXT NOT NULL,
        kind        TEXT NOT NULL,
        name        TEXT NOT NULL,
        rollout_id  TEXT,                       -- what it is about, as it was named
        attempt_id  TEXT,                       -- NULL: not seen yet
        response_id TEXT,
        about_trace TEXT,
        value       REAL,                       -- from 0 to 1; NULL: an edit or a comment alone
        taken_back  INTEGER NOT NULL,
        edited      INTEGER NOT NULL,
        given_ns    INTEGER NOT NULL,
        received_ns INTEGER NOT NULL,           -- by our clock
        UNIQUE (trace_id, span_id)
    );
    CREATE INDEX feedback_of_source  ON feedback(source);
    CREATE INDEX feedback_by_time    ON feedback(received_ns);
    CREATE INDEX feedback_of_attempt ON feedback(attempt_id) WHERE attempt_id IS NOT NULL;
    CREATE INDEX feedback_unmatched  ON feedback(seq)        WHERE attempt_id IS NULL;
    CREATE TABLE settled (                      -- spans that are rewards made of feedback
        target     TEXT NOT NULL,
        number     INTEGER NOT NULL,            -- the newest of a target counts
        attempt_id TEXT NOT NULL,
        trace_id   TEXT NOT NULL,
        span_id    TEXT NOT NULL,
        value      REAL NOT NULL,
        PRIMARY KEY (target, number)
    ) WITHOUT ROWID;
    CREATE INDEX settled_of_attempt ON settled(attempt_id);
    CREATE TABLE forgotten (                    -- hashes of sources: what they had said by then is not stored again
        source   TEXT PRIMARY KEY,
        until_ns INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE canaries (                     -- candidates that a share of live rollouts was answered by
        policy    TEXT NOT NULL,
        version   INTEGER NOT NULL,
        live      INTEGER NOT NULL,             -- what it is compared with
        state     TEXT NOT NULL,
        began_ns  INTEGER NOT NULL,
        ended_ns  INTEGER,
        evidence  TEXT NOT NULL,                -- JSON
        reason    TEXT,
        PRIMARY KEY (policy, version)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE media (                        -- images and the like that messages carried, each once
        seq       INTEGER PRIMARY KEY,          -- order of arrival
        hash      TEXT NOT NULL UNIQUE,         -- SHA-256 of the bytes, hex
        mime_type TEXT NOT NULL,
        size      INTEGER NOT NULL,
        body      BLOB NOT NULL
    );
    CREATE TABLE media_uses (                   -- who refers to them, kept or not
        holder TEXT NOT NULL,                   -- span/SEQ, or step/STEP/POLICY: its batch
        hash   TEXT NOT NULL,
        PRIMARY KEY (holder, hash)
    ) WITHOUT ROWID;
    CREATE INDEX media_uses_of_hash ON media_uses(hash);
    """,
    """
    ALTER TABLE feedback ADD COLUMN named_attempt TEXT;  -- as its source named it, seen or not
    UPDATE feedback SET named_attempt = (SELECT spans.attempt_id FROM spans
            WHERE spans.trace_id = feedback.trace_id AND spans.span_id = feedback.span_id)
        WHERE attempt_id IS NULL;
    """,
    """
    CREATE INDEX spans_of_evaluations ON spans(name) WHERE name >= 'evaluate ' AND name < 'evaluate!';
    """,
    """
    ALTER TABLE policies ADD COLUMN model TEXT;  -- the mark of the weights that it started from; NULL: not noted yet
    """,
    """
    CREATE TABLE outer_traces (                 -- of attempts whose spans came after this table was made
        trace_id   TEXT NOT NULL,               -- the program's own, not that of the attempt's spans
        attempt_id TEXT NOT NULL,
        PRIMARY KEY (trace_id, attempt_id)
    ) WITHOUT ROWID;
    CREATE INDEX outer_traces_of_attempt ON outer_traces(attempt_id);
    """,
    """
    CREATE TABLE prompts (                      -- texts in users' code, and what was proposed in their place
        name       TEXT NOT NULL,
        version    INTEGER NOT NULL,            -- counted for each name from 0
        root       TEXT NOT NULL,               -- SHA-256 of the default in the code that it derives from, hex
        text       TEXT NOT NULL,
        parent     INTEGER,                     -- the version that it was made from; NULL: it is the default itself
        state      TEXT NOT NULL,
        made_by    TEXT NOT NULL,
        reason     TEXT,
        scores     TEXT NOT NULL,               -- JSON: by stage, its mean and number of tasks
        created_ns INTEGER NOT NULL,
        PRIMARY KEY (name, version)
    );
    CREATE INDEX prompts_of_root ON prompts(name, root);
    CREATE UNIQUE INDEX one_live_prompt ON prompts(name, root) WHERE state = 'live';
    """,
)


def migrate(connection: sqlite3.Connection, *, where: str) -> None:
    """Migrate a file to the newest schema; each step is one transaction, so a crash between two of them is harmless.

    Raises:
        UnusableStoreError: the file was written by a newer lightning-trainer.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise UnusableStoreError(
            f"the store {where} has schema {version}, this lightning-trainer knows up to {len(MIGRATIONS)}: "
            "upgrade lightning-trainer, or choose another state_dir"
        )
    for target, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {target}; COMMIT;")


def supply_tables(connection: sqlite3.Connection) -> None:
    """Give a read-only file of an earlier schema the tables that it lacks, empty.

    They are temporary tables: nothing is written. ``evaluations`` gets the contents that a migration would give it.
    """
    known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    lacking = {name: table for name, table in _LATER_TABLES.items() if name not in known}
    for name, columns in lacking.items():
        connection.execute(f"CREATE TEMP TABLE {name} ({columns})")
    if "evaluations" in lacking:
        connection.execute(
            "INSERT INTO temp.evaluations(attempt_id) SELECT attempt_id FROM attempts WHERE mode = 'evaluate'"
        )


_LATER_TABLES = {
    "arrivals": "attempt_id, numbering, arrived, started",
    "rollbacks": "seq, policy, after_step, version, at_ns",
    "participations": "policy, attempt_id",
    "outer_traces": "trace_id, attempt_id",
    "policies": "policy, last_seq, enrolled, model",
    "waiting": "policy, attempt_id, group_key, task_key, since_ns, resting",
    "drops": "attempt_id, reason, at_ns",
    "totals": "name, value",
    "expired": "attempt_id, at_ns",
    "evaluations": "change INTEGER PRIMARY KEY, attempt_id",
    "verdicts": "policy, attempt_id, version, reward",
    "cursors": "name, position, about",
    "pauses": "policy, reason, at_ns",
    "feedback": "seq, trace_id, span_id, source, kind, name, rollout_id, attempt_id, response_id, about_trace, value, "
    "taken_back, edited, given_ns, received_ns, named_attempt",
    "settled": "target, number, attempt_id, trace_id, span_id, value",
    "forgotten": "source, until_ns",
    "canaries": "policy, version, live, state, began_ns, ended_ns, evidence, reason",
    "media": "seq, hash, mime_type, size, body",
    "media_uses": "holder, hash",
    "prompts": "name, version, root, text, parent, state, made_by, reason, scores, created_ns",
}
