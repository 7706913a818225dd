"""A spool keeps what it was given until someone has accepted it, and has one owner."""

import base64
import contextlib
import errno
import json
import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_instrumentation.delivery import segment
from lightning_instrumentation.delivery.memory import MemorySpool
from lightning_instrumentation.delivery.ownership import Ownership
from lightning_instrumentation.delivery.segment import Segment, SegmentError
from lightning_instrumentation.delivery.spool import Spool, default_spool_dir, endpoint_folder, orphaned_spools
from lightning_instrumentation.failures import failures

ENDPOINT = "http://127.0.0.1:8321"


@pytest.fixture
def folder(tmp_path):
    return endpoint_folder(tmp_path, ENDPOINT)


def bodies(spool) -> list[bytes]:
    return spool.read(100)


def abandon(spool: Spool) -> None:
    """As a killed process leaves it: nothing is closed in good order, but the lock is gone."""
    spool._ownership.release()


@pytest.fixture(params=["disk", "memory"])
def spool(request, folder):
    with Spool.create(folder) if request.param == "disk" else MemorySpool() as made:
        yield made


def test_records_come_back_in_order_until_they_are_forgotten(spool):
    for body in (b"a", b"bb", b"ccc"):
        spool.append(body)
    assert bodies(spool) == [b"a", b"bb", b"ccc"]
    assert (spool.rows, spool.bytes) == (3, 6)
    spool.forget(spool.read(2))
    assert bodies(spool) == [b"ccc"]
    assert (spool.rows, spool.bytes) == (1, 3)


def test_a_read_is_bounded_by_records_and_by_bytes_and_is_never_empty_handed(spool):
    assert spool.read(100) == []
    for _ in range(5):
        spool.append(b"x" * 10)
    assert len(spool.read(2)) == 2
    assert len(spool.read(100, most_bytes=25)) == 2
    assert spool.read(100, most_bytes=1) == [b"x" * 10]


def test_a_rejected_record_is_put_aside_with_its_reason_and_that_file_stays(folder):
    with Spool.create(folder) as spool:
        for body in (b"bad", b"good"):
            spool.append(body)
        spool.reject(b"bad", "400: no")
        assert (spool.rows, spool.bytes) == (1, 4)
        spool.forget(spool.read(1))
    (line,) = spool.rejected_path.read_text().splitlines()
    told = json.loads(line)
    assert (base64.b64decode(told["request"]), told["reason"]) == (b"bad", "400: no")
    assert stat.S_IMODE(os.stat(spool.rejected_path).st_mode) == 0o600
    assert orphaned_spools(folder.parent, ENDPOINT) == []
    assert list(folder.iterdir()) == [spool.rejected_path]


def test_an_empty_spool_leaves_no_file_behind(folder):
    with Spool.create(folder) as spool:
        spool.append(b"x")
        spool.forget(spool.read(1))
    assert list(folder.iterdir()) == []


def test_only_a_dead_owners_spool_can_be_taken_over_and_by_one_only(folder, tmp_path):
    alive, dead = Spool.create(folder), Spool.create(folder)
    alive.append(b"alive")
    dead.append(b"dead")
    abandon(dead)
    (taken,) = orphaned_spools(tmp_path, ENDPOINT)
    assert bodies(taken) == [b"dead"]
    assert orphaned_spools(tmp_path, ENDPOINT) == []
    taken.forget(taken.read(10))
    taken.close()
    assert [path.suffix for path in sorted(folder.glob("*.lock"))] == [".lock"]
    alive.forget(alive.read(10))
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
    (folder / "1-bad.000000.spans").write_bytes(b"this is not a file of spans" * 100)
    dead = Spool.create(folder)
    dead.append(b"good")
    abandon(dead)
    (taken,) = orphaned_spools(tmp_path, ENDPOINT)
    assert bodies(taken) == [b"good"]
    taken.close()
    assert (folder / "1-bad.000000.unreadable").exists()


def test_a_process_that_died_before_its_first_span_leaves_nothing(folder, tmp_path):
    folder.mkdir()
    (folder / "1-lock.lock").touch()
    (folder / "2-begun.000000.spans").touch()
    assert orphaned_spools(tmp_path, ENDPOINT) == []
    assert list(folder.iterdir()) == []


def test_what_is_forgotten_after_the_close_stays_and_no_file_of_the_program_is_touched(folder, tmp_path):
    """A daemon that answers after ``lt.shutdown`` has given up: the descriptors' numbers are the program's by then."""
    written = b"what the program wrote, longer than a head"
    spool = Spool.create(folder)
    spool.append(b"x")
    read = spool.read(1)
    spool.close()
    with contextlib.ExitStack() as program:
        for number in range(6):
            file = program.enter_context((tmp_path / f"mine-{number}").open("w+b", buffering=0))
            file.write(written)
        spool.forget(read)
        with pytest.raises(OSError, match="Bad file descriptor"):
            spool.append(b"y")
        assert {file.read_bytes() for file in tmp_path.glob("mine-*")} == {written}
    (taken,) = orphaned_spools(tmp_path, ENDPOINT)
    assert bodies(taken) == [b"x"]
    taken.close()


@pytest.mark.parametrize("theirs", ["lock", "folder"])
def test_a_spool_of_another_user_is_left_and_the_others_are_taken(folder, tmp_path, monkeypatch, theirs):
    for body in (b"mine", b"also mine"):
        dead = Spool.create(folder)
        dead.append(body)
        abandon(dead)
    refused = endpoint_folder(tmp_path, ENDPOINT, "other") if theirs == "folder" else folder / "0-another.lock"
    if theirs == "lock":
        refused.touch()
    take, listed = Ownership.take, type(folder).iterdir

    def refuse(path):
        if path == refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Ownership, "take", lambda path: refuse(path) or take(path))
    monkeypatch.setattr(type(folder), "iterdir", lambda path: refuse(path) or listed(path))
    taken = orphaned_spools(tmp_path, ENDPOINT, ["other", None])
    assert sorted(body for spool in taken for body in bodies(spool)) == [b"also mine", b"mine"]
    for spool in taken:
        spool.close()
    assert failures.counts()["spool-busy"] > 0


def test_what_was_said_to_the_model_is_private_to_the_user(folder):
    with Spool.create(folder) as spool:
        (file,) = folder.glob("*.spans")
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert spool.rows == 0


def test_a_spool_that_is_emptied_now_and_then_stays_as_small_as_it_was(folder):
    with Spool.create(folder) as spool:
        for _ in range(50):
            for _ in range(4):
                spool.append(b"x" * 1000)
            spool.forget(spool.read(100))
        (file,) = folder.glob("*.spans")
        assert file.stat().st_size < 5000


def test_one_that_is_never_quite_empty_goes_on_in_new_files_and_deletes_the_old(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 1000)
    spool = Spool.create(folder)
    spool.append(b"0" * 90)
    for number in range(1, 100):
        spool.append(b"%d," % number * 30)
        spool.forget(spool.read(1))
    files = list(folder.glob("*.spans"))
    assert len(files) <= 2
    assert sum(file.stat().st_size for file in files) < 3000
    last = [b"last %d" % number for number in range(100)]
    for body in last:
        spool.append(body)
    abandon(spool)
    (taken,) = orphaned_spools(tmp_path, ENDPOINT)
    assert taken.rows == 101
    found = []
    while read := taken.read(7):
        taken.forget(read)
        found += read
    assert found == [b"99," * 30, *last]
    taken.close()
    assert list(folder.iterdir()) == []


def test_a_span_longer_than_a_file_gives_its_room_back(folder, monkeypatch):
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 1000)
    with Spool.create(folder) as spool:
        spool.append(b"x" * 100_000)
        assert spool.read(10, most_bytes=50) == [b"x" * 100_000]
        spool.forget(spool.read(1))
        (file,) = folder.glob("*.spans")
        assert file.stat().st_size < 100


@pytest.mark.parametrize("written", [0, 5])
def test_a_write_that_fails_says_so_and_leaves_nothing_behind(folder, tmp_path, monkeypatch, written):
    spool = Spool.create(folder)
    spool.append(b"before")
    pwrite, answers = os.pwrite, iter([written, None] if written else [None])

    def full(descriptor: int, data: bytes, at: int) -> int:
        most = next(answers)
        if most is None:
            raise OSError(errno.ENOSPC, "no space left on device")
        return pwrite(descriptor, data[:most], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space"):
        spool.append(b"x" * 50)
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert (spool.rows, spool.bytes) == (1, 6)
    spool.append(b"after")
    abandon(spool)
    with orphaned_spools(tmp_path, ENDPOINT)[0] as taken:
        assert bodies(taken) == [b"before", b"after"]


def test_what_cannot_be_marked_as_accepted_is_not_read_again_and_nothing_after_it_is_lost(
    folder, tmp_path, monkeypatch
):
    spool = Spool.create(folder)
    for body in (b"a", b"bb"):
        spool.append(body)
    monkeypatch.setattr(Segment, "_mark", lambda *told: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    spool.forget(spool.read(100))
    assert bodies(spool) == []
    spool.append(b"ccc")
    assert bodies(spool) == [b"ccc"]
    monkeypatch.undo()
    abandon(spool)
    with orphaned_spools(tmp_path, ENDPOINT)[0] as taken:
        assert bodies(taken) == [b"a", b"bb", b"ccc"]  # two of them once more


class Killed(Exception):
    """In the middle of a write."""


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_after_a_kill_all_that_waited_is_there_and_nothing_else(data, tmp_path_factory):
    """Whatever was written and forgotten before, and however much of one more record or mark came to the file."""
    path = tmp_path_factory.mktemp("segment") / "1.000000.spans"
    written = Segment.create(path)
    waiting: list[bytes] = []
    for _ in range(data.draw(st.integers(0, 25))):
        if data.draw(st.booleans()):
            # Bodies of one length make old records lie where new ones end.
            body = data.draw(st.binary(min_size=1, max_size=4) | st.binary(min_size=4, max_size=4))
            written.append(body)
            waiting.append(body)
        else:
            read = written.read(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12)))
            assert read == waiting[: len(read)]
            assert bool(read) == bool(waiting)
            written.forget(read)
            del waiting[: len(read)]
    torn = data.draw(st.integers(0, 19))
    if torn:
        with pytest.MonkeyPatch.context() as patch:
            pwrite = os.pwrite

            def die(descriptor: int, record: bytes, at: int) -> int:
                pwrite(descriptor, record[:torn], at)
                if os.pread(descriptor, len(record), at) == record:  # what lay there ends as it does
                    waiting.append(b"torn")
                raise Killed

            patch.setattr(os, "pwrite", die)
            with pytest.raises(Killed):
                written.append(b"torn")
    written.close(delete=False)
    found = Segment.open(path)
    assert (found.read(100, 1 << 20), found.rows, found.bytes) == (waiting, len(waiting), sum(map(len, waiting)))
    found.append(b"more")
    assert found.read(100, 1 << 20) == [*waiting, b"more"]
    found.close(delete=True)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"LTSPANS1" + rest))
def test_any_file_at_all_is_read_or_refused(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("segment") / "1.000000.spans"
    path.write_bytes(content)
    try:
        found = Segment.open(path)
    except SegmentError:
        return
    assert found.read(100, 1 << 20) == []
    found.close(delete=True)


def test_the_folder_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path / "a"))
    assert default_spool_dir() == tmp_path / "a"
    monkeypatch.delenv("LIGHTNING_SPOOL_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert default_spool_dir() == tmp_path / "b" / "lightning-trainer" / "spool"


@pytest.mark.parametrize("where", ["a body", "a number", "a length"])
def test_a_damaged_record_is_said_and_the_others_are_kept(folder, where):
    with Spool.create(folder) as spool:
        for number in range(100):
            spool.append(b"%04d" % number * 20)
        path = spool._segments[0].path
        abandon(spool)
    record = segment._RECORD.size + 80
    at = segment._HEAD.size + 3 * record + {"a length": 0, "a number": 8, "a body": segment._RECORD.size}[where]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    before = failures.counts().get("spool-damaged", 0)
    mended = Segment.open(path)
    lost = 4 if where == "a number" else 3  # what took the fifth one's number is sound itself
    assert mended.read(100, 10**6) == [b"%04d" % number * 20 for number in range(100) if number != lost]
    assert failures.counts()["spool-damaged"] == before + 1
    mended.close(delete=False)
    again = Segment.open(path)
    assert again.rows == 99
    again.append(b"another")
    assert again.read(100, 10**6)[-1] == b"another"
    again.close(delete=True)
