"""A store is backed up beside its daemon, gone back to whole or not at all, and damage costs what lies on it alone."""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import DamagedStoreError, StoreError
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.upkeep import files
from lightning_trainer.store.upkeep import journal as journal_files
from lightning_trainer.store.upkeep.backup import back_up
from lightning_trainer.store.upkeep.check import Reading, check
from lightning_trainer.store.upkeep.compact import compact
from lightning_trainer.store.upkeep.repair import repair
from lightning_trainer.store.upkeep.restore import restore
from lightning_trainer.types import (
    LedgerRow,
    Outcome,
    PolicyVersion,
    Sample,
    Segment,
    Span,
    TrainingBatch,
    VersionState,
)

PAGE = 8192


def batch(step: int) -> TrainingBatch:
    segment = Segment(1, 2, "c/0", 0, 1.0, "a")
    return TrainingBatch("p", step, (Sample("s", "p", "x", "g", f"a{step}", (1, 2), (0, 1), (0.0, -1.0), (segment,)),))


async def filled(folder: Path, make_root: Callable[..., Span], steps: int = 5, **config) -> Path:
    """A store with an attempt a step, each with 40 spans of 2 KiB."""
    path = folder / "lightning.sqlite"
    async with SqliteStore(path, StoreConfig(**config)) as store:
        await store.enroll("p")
        for step in range(1, steps + 1):
            about = {semconv.ATTEMPT_ID: f"a{step}", semconv.ROLLOUT_ID: f"rollout-of-a{step}", "text": "x" * 2000}
            calls = [Span(f"{step:032x}", f"{step * 100 + n:016x}", None, "chat", 1, 2, about) for n in range(40)]
            await store.append([make_root(step, f"a{step}"), *calls])
            row = LedgerRow("x", "p", 0, Outcome.TRAINED, "sampled", 1, 1)
            await store.assign(batch(step), policy="p", step=step, attempt_ids=[f"a{step}"], ledger=[row])
            await store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, step))
    return path


def spoil(path: Path, pages: set[int]) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(os.urandom(PAGE))


async def test_a_backup_is_taken_beside_a_writer_and_is_one_snapshot(tmp_path, make_root, make_span):
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    path = await filled(state, make_root)
    checkpoint = state / "checkpoints" / "p" / "step-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("w")
    async with SqliteStore(path) as store:
        made = back_up(state, folder, {"p": checkpoint})
        await store.append([make_span(10**6)])
        with pytest.raises(StoreError, match=r"in use by another daemon \(process \d+\)"):
            restore(folder, state)
    assert (made.spans, made.checkpoints) == (205, {"p": 4})
    assert (folder / "lightning.sqlite").stat().st_mode & 0o077 == 0
    (checkpoint / "weights").unlink()
    later = state / "versions" / "p" / "v00000009"
    later.mkdir(parents=True)
    restored = restore(folder, state)
    assert (restored.spans, restored.from_journal) == (205, 0)
    assert (checkpoint / "weights").read_text() == "w"
    assert not later.exists(), "version 9 will be another one"
    assert restored.aside is not None
    with read_only(restored.aside) as connection:
        assert connection.execute("SELECT count(*) FROM spans").fetchone() == (206,)
    with pytest.raises(StoreError, match="already exists"):
        back_up(state, folder, {})
    with pytest.raises(StoreError, match="is not a backup"):
        restore(state, tmp_path / "other")


async def test_a_restored_daemon_is_the_one_that_was_backed_up_and_another_one_is_told_so(tmp_path, make_root):
    state, folder, new = tmp_path / "state", tmp_path / "backup", tmp_path / "new" / "state"
    state.mkdir()
    await filled(state, make_root, steps=1)
    (state / "daemon-id").write_text("a" * 32 + "\n")
    back_up(state, folder, {})
    for _ in range(2):
        assert restore(folder, new).problems == []
        assert (new / "daemon-id").read_text() == "a" * 32 + "\n"
        assert (new / "daemon-id").stat().st_mode & 0o077 == 0
    (new / "daemon-id").write_text("b" * 32 + "\n")
    (said,) = restore(folder, new).problems
    assert said.startswith(f"{new / 'daemon-id'} stays as it is, and the backup is of another daemon")
    assert (new / "daemon-id").read_text() == "b" * 32 + "\n"
    (folder / "daemon-id").unlink()  # as in a backup of an earlier version
    assert restore(folder, tmp_path / "newer").problems == []


def checkpoint_of(folder: Path, text: str) -> Path:
    checkpoint = folder / "checkpoints" / "p" / "step-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text(text)
    return checkpoint


def listed(folder: Path) -> dict[str, bytes | None]:
    """Every file of a folder with its contents, except locks."""
    files = (one for one in folder.rglob("*") if not one.is_dir() and one.suffix != ".lock")
    return {str(one.relative_to(folder)): one.read_bytes() for one in files}


async def test_a_backup_whose_checkpoint_cannot_be_copied_leaves_all_as_it_was(tmp_path, make_root):
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    await filled(state, make_root)
    back_up(state, folder, {"p": checkpoint_of(state, "later")})
    (folder / "checkpoints" / "p" / "step-00000004" / "optimizer").symlink_to("nowhere")
    before = listed(state)
    with pytest.raises(StoreError, match=r"step-00000004 cannot be copied to .*No such file"):
        restore(folder, state)
    assert listed(state) == before


async def test_a_backup_is_not_put_in_place_if_there_is_no_room_for_its_checkpoints(tmp_path, make_root, monkeypatch):
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    await filled(state, make_root)
    back_up(state, folder, {"p": checkpoint_of(state, "w" * 2**20)})
    before = listed(state)
    free = (folder / "lightning.sqlite").stat().st_size + 2**19
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(StoreError, match="MiB are free: make room first"):
        restore(folder, state)
    assert listed(state) == before


async def test_a_checkpoint_whose_version_is_not_published_yet_is_gone_back_to(tmp_path, make_root):
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    path = await filled(state, make_root, steps=4)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM versions WHERE version = 4")  # step 4 is trained and saved, and published next
    back_up(state, folder, {"p": checkpoint_of(state, "w")})
    later = state / "checkpoints" / "p" / "step-00000005"
    later.mkdir()
    restore(folder, state)
    assert (state / "checkpoints" / "p" / "step-00000004" / "weights").read_text() == "w"
    assert not later.exists()


async def test_checkpoints_and_weights_that_are_kept_elsewhere_are_gone_back_to_there(tmp_path, make_root):
    state, shared, folder = tmp_path / "state", tmp_path / "shared", tmp_path / "backup"
    state.mkdir()
    await filled(state, make_root)
    checkpoint = checkpoint_of(shared, "w")
    back_up(state, folder, {"p": checkpoint})
    (checkpoint / "weights").write_text("later")
    later = shared / "versions" / "p" / "v00000009"
    later.mkdir(parents=True)
    restore(folder, state, shared_dir=shared)
    assert (checkpoint / "weights").read_text() == "w"
    assert not later.exists()


async def test_nothing_that_another_run_left_is_there_under_its_name_after_a_restore(tmp_path, make_root):
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    async with SqliteStore(await filled(state, make_root, steps=4)) as store:
        await store.put_version(PolicyVersion("p", 3, 3, VersionState.LIVE, 3, checksum="ours"))
    back_up(state, folder, {"p": checkpoint_of(state, "ours")})
    (state / "checkpoints" / "p" / "step-00000004" / "weights").write_text("another run's")
    (state / "checkpoints" / "p" / "step-00000002").mkdir()
    for version, checksum in {2: "another run's", 3: "ours", 4: None}.items():
        weights = state / "versions" / "p" / f"v{version:08d}"
        weights.mkdir(parents=True)
        (weights / "publication.json").write_text(json.dumps({"checksum": checksum}))
    checkpoints, versions = state / "checkpoints", state / "versions"
    assert restore(folder, state).weights_aside == [checkpoints / "p~1", versions / "p~1"]
    assert {one.name for one in (checkpoints / "p~1").iterdir()} == {"step-00000002", "step-00000004"}
    assert {one.name for one in (versions / "p~1").iterdir()} == {"v00000002", "v00000004"}
    assert [one.name for one in (versions / "p").iterdir()] == ["v00000003"]
    assert [one.name for one in (checkpoints / "p").iterdir()] == ["step-00000004"]
    assert (checkpoints / "p" / "step-00000004" / "weights").read_text() == "ours"
    assert restore(folder, state).weights_aside == [checkpoints / "p~2"], "what was set aside stays where it is"


@pytest.mark.parametrize("user", [0, 1000])
async def test_what_root_puts_in_place_belongs_to_the_owner_of_its_folder(tmp_path, make_root, monkeypatch, user):
    """The daemon runs as a user of its own, and could open none of it."""
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    await filled(state, make_root)
    back_up(state, folder, {"p": checkpoint_of(state, "w")})
    for lock in state.glob("*.lock"):
        lock.unlink()
    given: dict[str, tuple[int, int]] = {}

    def chown(path: Path, owner: int, group: int, **_: bool) -> None:
        given[str(path.relative_to(state))] = owner, group

    monkeypatch.setattr(files.os, "geteuid", lambda: user)
    monkeypatch.setattr(files.os, "chown", chown)
    restore(folder, state)
    repair(state, {})
    checkpoint = "checkpoints/p/step-00000004.restoring"
    owned = {"lightning.sqlite.lock", "lightning.sqlite.restoring", "lightning.sqlite.repairing"}
    owned |= {"checkpoints", "checkpoints/p", checkpoint, f"{checkpoint}/weights"}
    assert owned <= given.keys() if user == 0 else not given
    assert set(given.values()) <= {(state.stat().st_uid, state.stat().st_gid)}


async def test_where_what_was_there_before_lies_is_said_also_if_a_restore_fails_at_its_end(tmp_path, make_root):
    state, folder = tmp_path / "state", tmp_path / "backup"
    state.mkdir()
    await filled(state, make_root)
    back_up(state, folder, {"p": checkpoint_of(state, "w")})
    (state / "metrics" / "p.jsonl.before-restore").mkdir(parents=True)
    (state / "metrics" / "p.jsonl").touch()
    with pytest.raises(StoreError, match="Is a directory") as refused:
        restore(folder, state)
    aside = min(state.glob("lightning.sqlite.before-restore-*"), key=lambda one: len(one.name))  # the others: its log
    assert f"what was there before is {aside}" in str(refused.value)


async def test_with_a_journal_a_restored_backup_has_everything_that_was_acknowledged(tmp_path, make_root, make_span):
    state, folder, journal = tmp_path / "state", tmp_path / "backup", tmp_path / "journal"
    state.mkdir()
    path = await filled(state, make_root, journal=journal)
    async with SqliteStore(path, StoreConfig(journal=journal)) as store:
        await store.append([make_span(10**6)])
        back_up(state, folder, {}, journal=journal)
        for number in range(1, 20):
            await store.append(
                [make_span(10**6 + number, attributes={"n": number}), make_root(10**7 + number, f"late{number}")]
            )
        acknowledged = await store.spans_of_attempts([f"late{n}" for n in range(1, 20)])
        last = sorted(journal.glob("*.spans"))[-1]
        with last.open("ab") as file:
            file.write(b"cut off in the mid")
    path.unlink()
    restored = restore(folder, state, journal=journal)
    assert restored.from_journal == 38
    assert len(restored.problems) == 1
    async with SqliteStore(path) as store:
        assert (await store.counts())["spans"] == 205 + 1 + 38
        assert await store.spans_of_attempts([f"late{n}" for n in range(1, 20)]) == acknowledged


@pytest.mark.parametrize("there", [False, True])
async def test_a_journal_that_is_not_there_is_told_of(tmp_path, make_root, there):
    state, folder, journal = tmp_path / "state", tmp_path / "backup", tmp_path / "journal"
    await filled(state, make_root, steps=1)
    back_up(state, folder, {})
    if there:
        journal.mkdir()  # where another disk is to be mounted
    (problem,) = restore(folder, state, journal=journal).problems
    assert f"the journal {journal} {'is empty' if there else 'is not there'}" in problem
    assert "restore again" in problem
    assert restore(folder, state).problems == []


async def test_feedback_from_a_journal_was_received_in_the_hour_in_which_it_was_given(tmp_path):
    hour, now = 3600 * 10**9, time.time_ns()
    state, folder, journal = tmp_path / "state", tmp_path / "backup", tmp_path / "journal"
    path = state / "lightning.sqlite"
    async with SqliteStore(path, StoreConfig(journal=journal)) as store:
        back_up(state, folder, {}, journal=journal)
        given = [now - 30 * hour, *(now - hours * hour for hours in (23, 2, 1)), now + 30 * hour]
        about = Subject(attempt_id="a1")
        await store.append([feedback_span(about, source="s", kind="person", name="n", given_ns=one) for one in given])
    manifest = folder / "backup.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "at_ns": now - 24 * hour}))
    restore(folder, state, journal=journal)
    async with SqliteStore(path) as store:
        kept = {one.given_ns: one.received_ns for one in await store.scan(feedback.select)}
    assert [kept[one] for one in given[:-1]] == [now - 24 * hour, *given[1:-1]]
    assert now < kept[given[-1]] < now + hour, "whatever its clock says"


async def test_what_was_in_the_journal_and_not_committed_yet_when_a_backup_began_stays_there(
    tmp_path, make_root, monkeypatch
):
    monkeypatch.setattr(journal_files, "_SEGMENT_BYTES", 1)
    state, folder, journal = tmp_path / "state", tmp_path / "backup", tmp_path / "journal"
    state.mkdir()
    async with SqliteStore(state / "lightning.sqlite", StoreConfig(journal=journal)) as store:
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # commits wait
            waiting = [asyncio.create_task(store.append([make_root(n, f"a{n}")])) for n in (1, 2)]
            while len(list(journal_files.read(journal, []))) < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(back_up, state, folder, {}, journal=journal)
            other.execute("COMMIT")
        assert await asyncio.gather(*waiting) == [1, 1], "both are acknowledged"
    assert restore(folder, state, journal=journal).spans == 2
    segments = len(list(journal.glob("*.spans")))
    assert journal_files.delete_before(journal, time.time_ns() + 200 * 10**9) == segments - 1, "by a later backup"


async def test_a_sound_store_is_sound(tmp_path, make_root):
    path = await filled(tmp_path, make_root)
    with read_only(path) as connection:
        found = list(check(connection))
    assert [(one.what, one.looked_at, one.number) for one in found] == [
        ("pages and indexes", None, 0),
        ("relations of tables", None, 0),
        ("spans", 205, 0),
        ("media", 0, 0),
        ("batches", 5, 0),
        ("reports of steps", 5, 0),
    ]


async def test_a_flipped_bit_that_sqlite_does_not_see_is_found_by_the_checksum(tmp_path, make_root):
    path = await filled(tmp_path, make_root)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"x" * 1000)
    whole[at + 500] = ord("y")
    path.write_bytes(whole)
    with read_only(path) as connection:
        found = {one.what: one for one in check(connection)}
    assert found["pages and indexes"].number == 0
    assert found["spans"].number == 1
    assert "its bytes are not those that were stored" in found["spans"].damaged[0]
    repaired = repair(tmp_path, {})
    assert (repaired.rows["spans"], len(repaired.lost["spans"])) == (204, 1)
    async with SqliteStore(path) as store:
        assert (await store.counts())["spans"] == 204


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> bytes:
    from lightning_trainer.types import SpanStatus

    def root(number: int, attempt: str) -> Span:
        about = {semconv.ROLLOUT_ROOT: True, semconv.ROLLOUT_ID: f"rollout-of-{attempt}", semconv.ATTEMPT_ID: attempt}
        return Span(f"{number:032x}", f"{number:016x}", None, "rollout", 1, 2, about, status=SpanStatus.OK)

    path = asyncio.run(filled(tmp_path_factory.mktemp("sound"), root))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whichever_pages_are_bad_the_rest_is_kept_and_nothing_is_made_up(tmp_path_factory, original, data):
    pages = len(original) // PAGE
    # The first page has the schema: without it there is no database, and a backup is what is left.
    bad = data.draw(st.sets(st.integers(1, pages - 1), min_size=1, max_size=2))
    state = tmp_path_factory.mktemp("damaged")
    path = state / "lightning.sqlite"
    path.write_bytes(original)
    sound = _spans(path)
    spoil(path, bad)
    try:
        repaired = repair(state, {})
    except StoreError:
        assert path.read_bytes() != original, "it is as it was: damaged"
        return
    kept = _spans(path)
    assert set(kept.items()) <= set(sound.items())
    assert len(kept) == len(sound) or repaired.lost
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        # Nothing that a step may have consumed waits for another.
        waiting = {one for (one,) in connection.execute("SELECT attempt_id FROM waiting")}
    assert not waiting & {f"a{step}" for step in range(1, 6)}
    assert len(list(state.glob("lightning.sqlite.damaged-*"))) == 1


def _spans(path: Path) -> dict[tuple[str, str], bytes]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT trace_id, span_id, body FROM spans").fetchall()
    return {(trace, span): body for trace, span, body in rows}


async def test_a_bad_page_of_spans_costs_little_more_than_what_lies_on_it(tmp_path, make_root):
    path = await filled(tmp_path, make_root)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    spoil(path, {whole.index(b"x" * 1000, len(whole) // 3) // PAGE})
    with read_only(path) as connection:
        reading = Reading(connection, "spans", "trace_id")
        kept = [row[0] for row in reading.by_number("seq")]
        assert 190 <= len(kept) < 205
        assert len(reading.damaged) == 1
        assert any(one.number for one in check(connection))
    async with SqliteStore(path) as store:
        with pytest.raises(DamagedStoreError, match="`store repair` keeps everything else"):
            await store.spans_of_attempts([f"a{step}" for step in range(1, 6)])


@pytest.mark.parametrize("lost", ["waiting", "participations", "arrivals"])
async def test_what_is_known_of_waiting_attempts_beside_their_spans_is_found_out_anew(tmp_path, make_root, lost):
    """Before, none of them was ever trained, or an incomplete one looked complete, and nothing said so."""
    path = tmp_path / "lightning.sqlite"
    told = {semconv.SEQUENCE: "n", semconv.SEQUENCE_STARTED: 3, semconv.POLICY: "p"}
    async with SqliteStore(path) as store:
        await store.enroll("p")
        for number in range(1, 301):
            root = make_root(number, f"a{number}")
            call = replace(
                root,
                span_id=f"{number + 9000:016x}",
                scope=semconv.GATEWAY_SCOPE,
                attributes={
                    **{name: root.attributes[name] for name in (semconv.ATTEMPT_ID, semconv.ROLLOUT_ID)},
                    **told,
                    semconv.SEQUENCE_NUMBER: 1,
                },
            )
            await store.append([root, call])
        before = {one.attempt.attempt_id: (one.took_part, one.lacking) for one in await store.waiting_attempts("p")}
    assert set(before.values()) == {(True, 2)}
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (lost,)).fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    spoil(path, {page - 1})
    repaired = repair(tmp_path, {})
    assert repaired.lost.keys() == {lost}
    assert repaired.sentences
    async with SqliteStore(path) as store:
        await store.enroll("p")
        waiting = await store.waiting_attempts("p")
    assert {one.attempt.attempt_id: (one.took_part, one.lacking) for one in waiting} == before


async def test_a_batch_that_cannot_be_read_is_not_trained_on_and_training_goes_on_before_it(tmp_path, make_root):
    path = await filled(tmp_path, make_root)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE steps SET batch = x'00' WHERE step = 4")
        connection.commit()
    with read_only(path) as connection:
        assert {one.what: one.number for one in check(connection)}["batches"] == 1
    repaired = repair(tmp_path, {"p": 2})
    assert "step 4 of policy 'p' cannot be repeated" in repaired.sentences[0]
    async with SqliteStore(path) as store:
        states = await store.step_states("p")
    assert [str(state) for state in states.values()] == ["assigned", "assigned", "assigned", "skipped", "skipped"]


async def test_a_repair_without_room_says_so_and_leaves_the_store(tmp_path, make_root, monkeypatch):
    path = await filled(tmp_path, make_root)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**17))
        with pytest.raises(StoreError, match=r"repairing takes 1 MiB in .* make room first"):
            repair(tmp_path, {})
    connect = sqlite3.connect

    def full(file: Path, **options) -> sqlite3.Connection:
        """Connect to a disk that others fill meanwhile."""
        connection = connect(file, **options)
        if file.name.endswith(".repairing"):
            connection.execute("PRAGMA max_page_count = 60")
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", full)
        with pytest.raises(StoreError, match=r"no room .* stays as it is: make room and repair again") as raised:
            repair(tmp_path, {})
        assert "restore" not in str(raised.value)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.repairing*"))
    assert repair(tmp_path, {}).rows["spans"] == 205


async def test_compacting_gives_back_what_was_deleted_and_an_older_file_learns_to(tmp_path, make_root):
    path = await filled(tmp_path, make_root)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA auto_vacuum=NONE")
        connection.execute("VACUUM")
        connection.execute("DELETE FROM spans WHERE seq < 150")
    before = path.stat().st_size
    done = compact(tmp_path)
    assert done.after < 0.7 * before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    async with SqliteStore(path):
        with pytest.raises(StoreError, match="in use by another daemon"):
            compact(tmp_path)
