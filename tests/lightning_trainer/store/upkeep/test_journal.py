"""A journal keeps what was acknowledged until a backup has it, whatever the disk and the clock do meanwhile."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.upkeep import journal as journal_files
from lightning_trainer.store.upkeep.journal import Journal, delete_before, read
from lightning_trainer.types import Span

HOUR_NS = 3600 * 10**9


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal")
    yield opened
    opened.close()


def span(number: int) -> Span:
    return Span(f"{number:032x}", f"{number:016x}", None, "chat", 1, 2, {})


def names(folder: Path) -> list[str]:
    damaged: list[str] = []
    found = [one.trace_id for spans in read(folder, damaged) for one in spans]
    assert damaged == []
    return found


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_journal_that_cannot_begin_its_next_file_says_so_and_closes_nobody_elses(
    journal: Journal, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(journal_files, "_SEGMENT_BYTES", 1)
    journal.append([span(1)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(errno.EMFILE))
        with pytest.raises(StoreError, match=r"cannot be written .*Too many open files"):
            journal.append([span(2)])
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(3)]  # among them what the journal had, if it closed that
    journal.append([span(3)])
    for descriptor in others:
        os.close(descriptor)  # it is still open
    assert names(journal.folder) == [span(1).trace_id, span(3).trace_id]


def test_what_follows_a_record_that_could_not_be_taken_back_is_read(journal: Journal, monkeypatch) -> None:
    journal.append([span(1)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing(errno.EIO))
        patched.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(StoreError, match=r"cannot be written .*Input/output error"):
            journal.append([span(2)])
    journal.append([span(3)])
    assert names(journal.folder)[-1] == span(3).trace_id
    assert len(list(journal.folder.glob("*.spans"))) == 2, "the record may be there in part, and ends its file"


async def test_a_store_whose_journal_cannot_go_on_is_not_ready_to_write(make_store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(journal_files, "_SEGMENT_BYTES", 1)
    async with make_store(StoreConfig(journal=tmp_path / "journal")) as store:
        await store.append([span(1)])
        with monkeypatch.context() as patched:
            patched.setattr(journal_files.os, "open", failing(errno.EMFILE))
            patched.setattr(journal_files.os, "ftruncate", failing(errno.EBADF))
            with pytest.raises(StoreError, match="Too many open files"):
                await store.append([span(2)])
            assert "Too many open files" in store.write_failure
        await store.append([span(2)])
        assert store.write_failure is None


class Clock:
    """The machine's clock, which can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = time.time_ns()
        monkeypatch.setattr(journal_files.time, "time_ns", lambda: self.now_ns)

    def write(self, journal: Journal, number: int) -> None:
        """Write a span and date the segment that it is in as the disk would."""
        before = {path: path.stat().st_size for path in journal.folder.iterdir()}
        journal.append([span(number)])
        for path in journal.folder.iterdir():
            if path.stat().st_size != before.get(path):
                os.utime(path, ns=(self.now_ns, self.now_ns))


def test_a_backup_leaves_what_is_written_after_the_clock_was_set_back(tmp_path: Path, monkeypatch) -> None:
    clock = Clock(monkeypatch)
    before = Journal(tmp_path)
    clock.write(before, 1)
    before.close()
    clock.now_ns -= HOUR_NS
    journal = Journal(tmp_path)
    clock.write(journal, 2)
    assert delete_before(tmp_path, clock.now_ns + 200 * 10**9) == 0
    clock.write(journal, 3)
    assert names(tmp_path) == [span(number).trace_id for number in (1, 2, 3)]
    assert delete_before(tmp_path, clock.now_ns + HOUR_NS + 200 * 10**9) == 1
    assert names(tmp_path) == [span(number).trace_id for number in (2, 3)]
    journal.close()


def test_a_journal_does_not_grow_for_ever_after_the_clock_was_years_ahead(tmp_path: Path, monkeypatch) -> None:
    clock = Clock(monkeypatch)
    clock.now_ns += 24 * 365 * HOUR_NS
    Journal(tmp_path).close()
    clock.now_ns -= 24 * 365 * HOUR_NS
    for number in (1, 2, 3):
        journal = Journal(tmp_path)
        clock.write(journal, number)
        journal.close()
    assert delete_before(tmp_path, clock.now_ns + 60 * 10**9) == 0, "not committed for sure"
    assert delete_before(tmp_path, clock.now_ns + 200 * 10**9) == 3
    assert names(tmp_path) == [span(3).trace_id]
