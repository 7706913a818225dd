"""A store that is moved to PostgreSQL, checked there, backed up, gone back to and compacted."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError, TurnLostError
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.postgres import schema
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.schema import migrate
from lightning_trainer.store.postgres.store import PostgresSize, PostgresStore
from lightning_trainer.store.postgres.upkeep import backup
from lightning_trainer.store.postgres.upkeep.backup import back_up, restore
from lightning_trainer.store.postgres.upkeep.checking import check
from lightning_trainer.store.postgres.upkeep.copying import TABLES, compact, copy_to_postgres
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.worklist.forgetting import forget_rollout
from lightning_trainer.types import LedgerRow, Outcome, PolicyVersion, VersionState


async def _fill(store, make_root, make_span) -> None:
    await store.begin_policy("p")
    await store.enroll("p")
    named = {semconv.ATTEMPT_ID: "a1", semconv.ROLLOUT_ID: "rollout-of-a1", "text": "nul \0 and é"}
    await store.append([make_root(n, f"a{n}") for n in range(1, 40)])
    await store.append([make_span(n, trace=n, attributes=named) for n in range(100, 160)])
    ledger = [LedgerRow(f"agent-{n}", "p", 0, Outcome.DROPPED, "because", n, 1) for n in range(5)]
    await store.assign(None, policy="p", step=1, attempt_ids=["a1", "a2"], ledger=ledger, state="skipped")
    await store.put_version(PolicyVersion("p", 0, 0, VersionState.LIVE, 5, probe_max_abs=1.25e-7))
    await store.put_rollback("p", 0, at_ns=7)


async def _everything(store) -> list:
    attempts = await store.attempts()
    return [
        attempts,
        await store.spans_of_attempts([one.attempt_id for one in attempts]),
        await store.waiting_attempts("p"),
        await store.steps("p"),
        await store.ledger("p"),
        await store.versions("p"),
        await store.rollbacks("p"),
        await store.counts(),
        await store.last_span(),
    ]


async def test_a_store_that_is_moved_answers_as_before_and_goes_on(
    tmp_path: Path, postgres_url: str, make_root, make_span
) -> None:
    path = tmp_path / "lightning.sqlite"
    async with SqliteStore(path) as store:
        await _fill(store, make_root, make_span)
        before = await _everything(store)
        with pytest.raises(StoreError, match="in use by another daemon"):
            copy_to_postgres(path, postgres_url)
    (tmp_path / "daemon-id").write_text("a" * 32)
    copied = copy_to_postgres(path, postgres_url)
    assert (copied.rows["spans"], copied.rows["ledger"]) == (99, 5)
    async with PostgresStore(postgres_url) as store:
        assert await _everything(store) == before
        assert await store.append([make_root(50, "new"), make_root(1, "a1")]) == 1
        assert await store.last_span() == before[-1] + 1
        assert await store.daemon_id("b" * 32) == "a" * 32
    with pytest.raises(StoreError, match="is not empty"):
        copy_to_postgres(path, postgres_url)


async def test_the_numbers_of_forgotten_spans_stay_taken_where_a_store_is_moved(
    tmp_path: Path, postgres_url: str, make_root
) -> None:
    path = tmp_path / "lightning.sqlite"
    async with SqliteStore(path) as store:
        await store.append([make_root(1, "a"), make_root(2, "b")])
        last = await store.last_span()
        await store.write(lambda connection: forget_rollout(connection, "rollout-of-b", now_ns=time.time_ns()))
    copy_to_postgres(path, postgres_url)
    async with PostgresStore(postgres_url) as store:
        await store.append([make_root(3, "c")])
        assert await store.last_span() == last + 1


def test_every_table_is_moved(tmp_path: Path) -> None:
    from lightning_trainer.store.schema import migrate

    with sqlite3.connect(tmp_path / "s.sqlite", isolation_level=None) as connection:
        migrate(connection, where="here")
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == set(TABLES)


async def test_a_copy_that_is_not_alike_is_not_kept(
    tmp_path: Path, postgres_url: str, make_root, make_span, monkeypatch
) -> None:
    path = tmp_path / "lightning.sqlite"
    async with SqliteStore(path) as store:
        await _fill(store, make_root, make_span)
    async with PostgresStore(postgres_url) as store:
        await store.write(
            lambda connection: connection.execute(
                """CREATE FUNCTION spoil() RETURNS trigger AS 'BEGIN NEW.body = NEW.body || ''x''; RETURN NEW; END'
                   LANGUAGE plpgsql"""
            )
        )
        await store.write(
            lambda connection: connection.execute(
                "CREATE TRIGGER spoil BEFORE INSERT ON spans FOR EACH ROW EXECUTE FUNCTION spoil()"
            )
        )
    with pytest.raises(StoreError, match="the copy of spans is not what was copied"):
        copy_to_postgres(path, postgres_url)
    async with PostgresStore(postgres_url) as store:
        assert (await store.counts())["spans"] == 0


async def test_check_says_what_is_damaged(postgres_url: str, make_root, make_span) -> None:
    async with PostgresStore(postgres_url) as store:
        await _fill(store, make_root, make_span)
        found = await store.scan(lambda connection: list(check(connection)))
        assert [(one.what, one.number) for one in found] == [
            ("counts", 0),
            ("spans", 0),
            ("media", 0),
            ("batches", 0),
            ("reports of steps", 0),
        ]
        await store.write(lambda connection: connection.execute("UPDATE spans SET body = 'spoilt' WHERE seq = 7"))
        await store.write(lambda connection: connection.execute("UPDATE totals SET value = 1 WHERE name = 'spans'"))
        counts, spans, *_ = await store.scan(lambda connection: list(check(connection)))
    assert "there are 99 spans, and 1 were counted" in counts.damaged[0]
    assert "its bytes are not those that were stored" in spans.damaged[0]


async def test_a_backup_is_gone_back_to_and_who_had_the_turn_before_has_it_no_more(
    tmp_path: Path, postgres_url: str, make_root, make_span
) -> None:
    checkpoint = tmp_path / "checkpoints" / "p" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("w")
    live = tmp_path / "versions" / "p" / "v00000000"
    live.mkdir(parents=True)
    async with PostgresStore(postgres_url) as store:
        await _fill(store, make_root, make_span)
        before = await _everything(store)
        assert await store.take_turn("p", "one") is None
        made = back_up(postgres_url, tmp_path / "backup", {"p": checkpoint}, versions={"p": live})
        assert (made.spans, made.checkpoints) == (99, {"p": 1})
        await store.append([make_root(60, "later")])
        with pytest.raises(StoreError, match="stop the daemons first"):
            restore(postgres_url, tmp_path / "backup", tmp_path / "elsewhere")
        had = store
    restored = restore(postgres_url, tmp_path / "backup", tmp_path / "elsewhere")
    assert restored.spans == 99
    assert (tmp_path / "elsewhere" / "checkpoints" / "p" / "step-00000001" / "weights").read_text() == "w"
    assert (tmp_path / "elsewhere" / "versions" / "p" / "v00000000").is_dir()
    async with PostgresStore(postgres_url) as store:
        assert await _everything(store) == before
        assert await store.append([make_root(60, "later")]) == 1
        async with had:
            with pytest.raises(TurnLostError):
                await had.put_version(PolicyVersion("p", 1, 1, VersionState.TRAINED, 6))


async def test_a_backup_whose_checkpoint_cannot_be_copied_changes_nothing(
    tmp_path: Path, postgres_url: str, make_root, make_span
) -> None:
    checkpoint = tmp_path / "checkpoints" / "p" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("w")
    async with PostgresStore(postgres_url) as store:
        await _fill(store, make_root, make_span)
        back_up(postgres_url, tmp_path / "backup", {"p": checkpoint})
        await store.append([make_root(60, "later")])
        before = await _everything(store)
    (checkpoint / "weights").write_text("later")
    (tmp_path / "backup" / "checkpoints" / "p" / "step-00000001" / "optimizer").symlink_to("nowhere")
    with pytest.raises(StoreError, match=r"step-00000001 cannot be copied to .*No such file"):
        restore(postgres_url, tmp_path / "backup", tmp_path)
    async with PostgresStore(postgres_url) as store:
        assert await _everything(store) == before
    assert [one.name for one in checkpoint.parent.iterdir()] == ["step-00000001"]
    assert (checkpoint / "weights").read_text() == "later"


async def test_nothing_that_another_run_left_is_there_under_its_name_after_a_restore(
    tmp_path: Path, postgres_url: str, make_root, make_span
) -> None:
    shared, state = tmp_path / "shared", tmp_path / "state"
    async with PostgresStore(postgres_url) as store:
        await _fill(store, make_root, make_span)
        await store.put_version(PolicyVersion("p", 0, 0, VersionState.LIVE, 5, checksum="ours"))
        await store.put_version(PolicyVersion("p", 1, 1, VersionState.LIVE, 6, checksum="ours"))
        back_up(postgres_url, tmp_path / "backup", {})
    kept, other = shared / "versions" / "p" / "v00000000", shared / "versions" / "p" / "v00000001"
    checkpoint = shared / "checkpoints" / "p" / "step-00000001"
    for folder in (kept, other, checkpoint, state / "metrics"):
        folder.mkdir(parents=True)
    for folder, checksum in ((kept, "ours"), (other, "another run's")):
        (folder / "publication.json").write_text(json.dumps({"checksum": checksum}))
    (state / "metrics" / "p.jsonl").touch()
    restored = restore(postgres_url, tmp_path / "backup", shared, state_dir=state)
    assert (kept.exists(), other.exists(), checkpoint.exists()) == (True, False, False)
    assert restored.weights_aside == [shared / "checkpoints" / "p~1", shared / "versions" / "p~1"]
    assert (shared / "versions" / "p~1" / "v00000001").is_dir()
    assert [one.name for one in (state / "metrics").iterdir()] == ["p.jsonl.before-restore"]


async def test_what_is_no_backup_for_this_database_is_refused_with_a_sentence(
    tmp_path: Path, postgres, postgres_url: str, make_root, monkeypatch
) -> None:
    folder = tmp_path / "backup"
    async with PostgresStore(postgres_url) as store:
        await store.append([make_root(1, "a1")])
        back_up(postgres_url, folder, {})
    with pytest.raises(StoreError, match="has no such schema yet: CREATE SCHEMA"):
        restore(postgres.url("nowhere"), folder, tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        with pytest.raises(StoreError, match="upgrade lightning-trainer"):
            restore(postgres_url, folder, tmp_path)
    manifest = (folder / "backup.json").read_text()
    (folder / "backup.json").write_text('{"at_ns":')
    with pytest.raises(StoreError, match="is not a backup"):
        restore(postgres_url, folder, tmp_path)
    async with PostgresStore(postgres_url) as store:
        assert (await store.counts())["spans"] == 1
        (name,) = await store.scan(lambda c: c.execute("SELECT current_schema()").fetchone())
    (folder / "backup.json").write_text(manifest)
    postgres.execute(f"DROP SCHEMA {name} CASCADE", f"CREATE SCHEMA {name}")
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        with pytest.raises(StoreError, match="a newer lightning-trainer made it"):
            restore(postgres_url, folder, tmp_path)
    assert restore(postgres_url, folder, tmp_path).spans == 1


async def test_restored_daemons_are_the_ones_that_were_backed_up(tmp_path: Path, postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        await store.daemon_id("a" * 32)
    back_up(postgres_url, tmp_path / "backup", {})
    async with PostgresStore(postgres_url) as store:
        await store.write(lambda connection: connection.execute("DELETE FROM identity"))
    restore(postgres_url, tmp_path / "backup", tmp_path)
    async with PostgresStore(postgres_url) as store:
        assert await store.daemon_id("b" * 32) == "a" * 32


async def test_a_daemon_is_in_a_restores_way_whatever_it_is_called_and_one_of_another_schema_is_not(
    tmp_path: Path, postgres, postgres_url: str, make_root
) -> None:
    async with PostgresStore(f"{postgres_url}&application_name=team-a") as store:
        await store.append([make_root(1, "a1")])
        back_up(postgres_url, tmp_path / "backup", {})
        with pytest.raises(StoreError, match="stop the daemons first"):
            restore(postgres_url, tmp_path / "backup", tmp_path)
    postgres.execute("CREATE SCHEMA of_others")
    async with PostgresStore(postgres.url("of_others")):
        assert restore(postgres_url, tmp_path / "backup", tmp_path).spans == 1


async def test_feedback_from_a_journal_was_received_in_the_hour_in_which_it_was_given(
    tmp_path: Path, postgres_url: str
) -> None:
    hour, now, folder = 3600 * 10**9, time.time_ns(), tmp_path / "backup"
    async with PostgresStore(postgres_url, StoreConfig(journal=tmp_path / "journal")) as store:
        back_up(postgres_url, folder, {}, journal=tmp_path / "journal")
        given = [now - hours * hour for hours in (30, 2, 1)]
        about = Subject(attempt_id="a1")
        await store.append([feedback_span(about, source="s", kind="person", name="n", given_ns=one) for one in given])
    told = json.loads((folder / "backup.json").read_text())
    (folder / "backup.json").write_text(json.dumps({**told, "at_ns": now - 24 * hour}))
    restore(postgres_url, folder, tmp_path, journal=tmp_path / "journal")
    async with PostgresStore(postgres_url) as store:
        kept = await store.scan(feedback.select)
    assert [one.received_ns for one in kept] == [now - 24 * hour, *given[1:]]


def test_whoever_comes_right_after_a_restore_is_let_in(postgres_url: str, monkeypatch) -> None:
    """The server ends a session some time after it was closed; here, not at all."""
    with closing(PostgresConnection(postgres_url)) as restoring:
        restoring.execute("BEGIN IMMEDIATE")
        migrate(restoring)
        restoring.execute("COMMIT")
        assert restoring.exclude_others()
        raw = restoring._connected()
        monkeypatch.setattr(raw, "close", lambda: None)
    with closing(PostgresConnection(postgres_url)) as other:
        other.execute("BEGIN")
        other.execute("COMMIT")
    monkeypatch.undo()
    raw.close()


async def test_a_daemon_that_starts_in_the_middle_of_a_restore_is_refused(
    tmp_path: Path, postgres_url: str, monkeypatch
) -> None:
    async with PostgresStore(postgres_url):
        back_up(postgres_url, tmp_path / "backup", {})
    opened: list[str] = []

    def start(connection: PostgresConnection) -> None:
        with closing(PostgresConnection(postgres_url)) as other, pytest.raises(StoreError) as refused:
            other.execute("BEGIN")
        opened.append(str(refused.value))
        migrate(connection)

    monkeypatch.setattr(backup, "migrate", start)
    restore(postgres_url, tmp_path / "backup", tmp_path)
    assert "a backup is being put in place" in opened[0]
    async with PostgresStore(postgres_url) as store:
        assert (await store.counts())["spans"] == 0


async def test_a_backup_of_an_earlier_schema_is_gone_back_to_where_the_store_has_a_later_one(
    tmp_path: Path, postgres_url: str, make_root, monkeypatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        async with PostgresStore(postgres_url) as store:
            await store.write(lambda c: c.execute("INSERT INTO pauses VALUES ('p', 'r', 1)"))
        back_up(postgres_url, tmp_path / "backup", {})
    async with PostgresStore(postgres_url) as store:
        await store.append([make_root(1, "a1")])
    restore(postgres_url, tmp_path / "backup", tmp_path)
    async with PostgresStore(postgres_url) as store:
        assert await store.scan(lambda c: c.execute("SELECT policy FROM pauses").fetchall()) == [("p",)]
        assert (await store.counts())["spans"] == 0
        assert await store.append([make_root(1, "a1")]) == 1


async def test_what_else_is_in_the_schema_is_neither_backed_up_nor_gone_back_to(
    tmp_path: Path, postgres, postgres_url: str, make_root
) -> None:
    async with PostgresStore(postgres_url) as store:
        await store.append([make_root(1, "a1")])
        (name,) = await store.scan(lambda c: c.execute("SELECT current_schema()").fetchone())
    postgres.execute(f"CREATE TABLE {name}.invoices(number int)", f"INSERT INTO {name}.invoices VALUES (1)")
    async with PostgresStore(postgres_url) as store:
        before = (await store.write(PostgresSize().measure)).total
        postgres.execute(f"CREATE TABLE {name}.large AS SELECT * FROM generate_series(1, 100000)")
        assert (await store.write(PostgresSize().measure)).total == before
    back_up(postgres_url, tmp_path / "backup", {})
    postgres.execute(f"INSERT INTO {name}.invoices VALUES (2)")
    assert restore(postgres_url, tmp_path / "backup", tmp_path).spans == 1
    async with PostgresStore(postgres_url) as store:
        assert await store.scan(lambda c: c.execute("SELECT number FROM invoices").fetchall()) == [(1,), (2,)]
        assert await store.append([make_root(2, "a2")]) == 1
        assert await store.last_span() == 2


async def test_a_schema_whose_name_has_to_be_quoted_is_measured_backed_up_and_gone_back_to(
    tmp_path: Path, postgres, make_root
) -> None:
    postgres.execute('CREATE SCHEMA "Team.1"')
    url = postgres.url('"Team.1"')
    async with PostgresStore(url) as store:
        await store.append([make_root(1, "a1")])
        assert (await store.write(PostgresSize().measure)).total > 0
    assert back_up(url, tmp_path / "backup", {}).spans == 1
    assert restore(url, tmp_path / "backup", tmp_path).spans == 1


async def test_compacting_keeps_everything(postgres_url: str, make_root, make_span) -> None:
    async with PostgresStore(postgres_url) as store:
        await _fill(store, make_root, make_span)
        before = await _everything(store)
        done = compact(postgres_url)
        assert done.after <= done.before
        assert await _everything(store) == before
