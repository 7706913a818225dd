"""What was acknowledged survives ``kill -9`` of the process that acknowledged it; what was not is refused, not lost."""

import inspect
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store import SqliteStore
from lightning_trainer.store import store as store_module
from lightning_trainer.store.tables import totals
from lightning_trainer.store.upkeep import journal
from lightning_trainer.store.upkeep.journal import Journal
from lightning_trainer.store.writer import GroupCommitWriter

_WRITER = """
import asyncio, sys
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span

def span(number):
    return Span("1" * 32, f"{number:016x}", None, "s", number, number, {"lightning.attempt.id": "a"})

async def write(store, first, stride):
    number = first
    while True:
        await store.append([span(number)])
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
        number += stride

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        await asyncio.gather(*(write(store, first, 8) for first in range(1, 9)))

asyncio.run(main())
"""


@pytest.mark.process
async def test_every_acknowledged_span_is_there_after_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    for round_number in range(3):
        writer = subprocess.Popen(  # noqa: ASYNC220 - the test has nothing else to do
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        assert writer.stdout is not None
        acknowledged = {int(writer.stdout.readline()) for _ in range(40 + 25 * round_number)}
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged |= {int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")}
        writer.stdout.close()
        writer.wait()
        async with SqliteStore(path) as store:  # the lock died with the process
            stored = {int(span.span_id, 16) for span in await store.spans_of_attempts(["a"])}
            assert acknowledged <= stored
        path.unlink()


async def test_every_commit_is_on_the_disk_when_it_is_acknowledged(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        with closing(inspect.unwrap(SqliteStore._connect)(store)) as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


class LosesItsServer(sqlite3.Connection):
    """A connection that breaks in the middle of a transaction: neither COMMIT nor ROLLBACK arrives, once."""

    breaks = ("COMMIT", "ROLLBACK")

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql in self.breaks:
            self.breaks = tuple(one for one in self.breaks if one != sql)
            raise sqlite3.OperationalError(f"{sql} did not arrive")
        return super().execute(sql, parameters)


def test_a_rollback_that_fails_ends_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=LosesItsServer)
    connection.execute("CREATE TABLE t (a)")
    writer = GroupCommitWriter(connection)

    def insert(to) -> None:
        to.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(StoreError, match="COMMIT did not arrive"):
        writer.submit(insert).result(10)
    writer.submit(insert).result(10)
    writer.close()
    with sqlite3.connect(path) as again:
        assert again.execute("SELECT count(*) FROM t").fetchone() == (1,)


@pytest.mark.parametrize("journaled", [False, True])
async def test_what_could_not_be_written_is_tried_again_though_nobody_calls(
    make_store, make_span, monkeypatch, tmp_path: Path, journaled: bool
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    async with make_store(StoreConfig(journal=tmp_path / "journal" if journaled else None)) as store:
        assert store.write_failure is None
        with monkeypatch.context() as patched:
            patched.setattr(*((Journal, "append") if journaled else (store_module, "insert_with_media")), full)
            with pytest.raises(StoreError, match="the disk is full"):
                await store.append([make_span(1)])
            assert store.write_failure == "the disk is full"
        await store.try_to_write()
        assert (store.write_failure, (await store.counts())["spans"]) == (None, 0)
        assert "tried" not in await store.scan(totals.select)
    if journaled:
        assert [span for spans in journal.read(tmp_path / "journal", []) for span in spans] == []


async def test_while_nothing_can_be_written_what_is_tried_says_so(make_store, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    async with make_store() as store:
        monkeypatch.setattr(totals, "add", full)
        with pytest.raises(StoreError):
            await store.try_to_write()
        assert store.write_failure == "the disk is full"
