"""A spool keeps what it was given until somebody has accepted it, and has one owner."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest
from lightning_instrumentation.delivery.spool import Spool, default_spool_dir, endpoint_folder, orphaned_spools

ENDPOINT = "http://127.0.0.1:8321"


@pytest.fixture
def folder(tmp_path):
    return endpoint_folder(tmp_path, ENDPOINT)


def bodies(spool: Spool) -> list[bytes]:
    return [row.body for row in spool.read(100)]


def abandon(spool: Spool) -> None:
    """As a killed process leaves it: nothing is closed in good order, but the lock is gone."""
    assert spool._ownership is not None
    spool._ownership.release()


def test_rows_come_back_in_order_until_they_are_deleted(folder):
    with Spool.create(folder) as spool:
        for body in (b"a", b"bb", b"ccc"):
            spool.append(body)
        assert bodies(spool) == [b"a", b"bb", b"ccc"]
        assert (spool.rows, spool.bytes) == (3, 6)
        first, second, _ = spool.read(100)
        spool.delete([first.row_id, second.row_id, 999])
        assert bodies(spool) == [b"ccc"]
        assert (spool.rows, spool.bytes) == (1, 3)


def test_a_read_is_bounded_by_rows_and_by_bytes_and_is_never_empty_handed(folder):
    with Spool.create(folder) as spool:
        for _ in range(5):
            spool.append(b"x" * 10)
        assert len(spool.read(2)) == 2
        assert len(spool.read(100, most_bytes=25)) == 2
        assert len(spool.read(100, most_bytes=1)) == 1


def test_a_rejected_row_is_put_aside_with_its_reason_and_the_file_stays(folder):
    with Spool.create(folder) as spool:
        spool.append(b"bad")
        spool.reject(spool.read(1)[0], "400: no")
        assert (spool.rows, spool.bytes) == (0, 0)
        assert spool.rejected() == [(b"bad", "400: no")]
    assert spool.path is not None
    assert spool.path.exists()
    assert orphaned_spools(folder.parent, ENDPOINT) == []
    assert spool.path.exists()


def test_an_empty_spool_leaves_no_file_behind(folder):
    with Spool.create(folder) as spool:
        spool.append(b"x")
        spool.delete([row.row_id for row in spool.read(1)])
    assert list(folder.iterdir()) == []


def test_only_a_dead_owners_spool_can_be_taken_over_and_by_one_only(folder, tmp_path):
    alive, dead = Spool.create(folder), Spool.create(folder)
    alive.append(b"alive")
    dead.append(b"dead")
    abandon(dead)
    (taken,) = orphaned_spools(tmp_path, ENDPOINT)
    assert bodies(taken) == [b"dead"]
    assert orphaned_spools(tmp_path, ENDPOINT) == []
    taken.delete([row.row_id for row in taken.read(10)])
    taken.close()
    assert [path.suffix for path in sorted(folder.glob("*.lock"))] == [".lock"]
    alive.delete([row.row_id for row in alive.read(10)])
    alive.close()
    assert list(folder.iterdir()) == []


def test_spools_of_another_endpoint_are_left_alone_and_loopback_has_one_name(folder, tmp_path):
    dead = Spool.create(folder)
    dead.append(b"x")
    abandon(dead)
    assert orphaned_spools(tmp_path, "http://127.0.0.1:8322") == []
    assert orphaned_spools(tmp_path, "http://other:8321") == []
    (taken,) = orphaned_spools(tmp_path, "http://localhost:8321/")
    taken.close()


def test_a_file_that_is_no_spool_is_set_aside_and_the_others_are_taken(folder, tmp_path):
    folder.mkdir()
    (folder / "1-bad.sqlite").write_bytes(b"this is not a database" * 100)
    dead = Spool.create(folder)
    dead.append(b"good")
    abandon(dead)
    (taken,) = orphaned_spools(tmp_path, ENDPOINT)
    assert bodies(taken) == [b"good"]
    taken.close()
    assert (folder / "1-bad.unreadable").exists()


def test_what_was_said_to_the_model_is_private_to_the_user(folder):
    with Spool.create(folder) as spool:
        assert spool.path is not None
        assert stat.S_IMODE(os.stat(spool.path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_spool_in_memory_does_the_same():
    with Spool.in_memory() as spool:
        spool.append(b"x")
        assert bodies(spool) == [b"x"]


def test_the_log_is_moved_into_the_file_by_whoever_has_time_and_not_by_writers(folder):
    with Spool.create(folder) as spool:
        for _ in range(50):
            spool.append(b"x" * 100_000)
        assert spool.path is not None
        log = Path(f"{spool.path}-wal")
        grown = log.stat().st_size
        assert grown > 5_000_000
        assert spool.path.stat().st_size < 100_000
        spool.checkpoint()
        assert spool.path.stat().st_size > 5_000_000
        for _ in range(20):
            spool.append(b"x" * 100_000)
        assert log.stat().st_size == grown  # begun anew, not grown
        assert spool.rows == 70
        spool.delete([row.row_id for row in spool.read(100, most_bytes=1 << 30)])


def test_a_write_that_fails_says_so(folder):
    spool = Spool.create(folder)
    spool._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.Error):
        spool.append(b"x")
    assert spool.rows == 0


def test_what_cannot_be_deleted_is_not_read_again_and_goes_later(folder):
    with Spool.create(folder) as spool:
        for body in (b"a", b"bb", b"ccc", b"dddd"):
            spool.append(body)
        first, second, third, _ = spool.read(100)
        spool._connection.execute("PRAGMA query_only = 1")
        spool.delete([first.row_id])
        spool.delete([first.row_id])
        spool.reject(second, "400: no")
        assert bodies(spool) == [b"ccc", b"dddd"]
        assert (spool.rows, spool.bytes) == (2, 7)
        spool._connection.execute("PRAGMA query_only = 0")
        spool.append(b"e")  # no transaction was left open
        spool.delete([third.row_id])
        assert bodies(spool) == [b"dddd", b"e"]
        assert spool._connection.execute("SELECT body FROM spans").fetchall() == [(b"bb",), (b"dddd",), (b"e",)]
        spool.delete([row.row_id for row in spool.read(100)])
    (left,) = orphaned_spools(folder.parent, ENDPOINT)
    assert bodies(left) == [b"bb"]  # refused, and not put aside yet
    left.close()


def test_the_folder_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path / "a"))
    assert default_spool_dir() == tmp_path / "a"
    monkeypatch.delenv("LIGHTNING_SPOOL_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert default_spool_dir() == tmp_path / "b" / "lightning-trainer" / "spool"
