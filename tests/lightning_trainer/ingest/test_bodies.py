"""Bodies stay under their bound, whatever they claim to be."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.ingest.http.bodies import (
    BodyMemory,
    BodyTooLargeError,
    BodyTooSlowError,
    TooManyBodiesError,
    gunzip,
    read_body,
)


async def _chunks(*parts: bytes):
    for part in parts:
        yield part


async def test_a_body_up_to_the_limit_is_read() -> None:
    assert await read_body(_chunks(b"ab", b"", b"cd"), limit=4) == b"abcd"


async def test_a_body_beyond_the_limit_is_not_read_to_its_end() -> None:
    async def endless():
        while True:
            yield b"x" * 1000

    with pytest.raises(BodyTooLargeError, match="more than 4096 bytes"):
        await read_body(endless(), limit=4096)


@given(st.lists(st.binary(max_size=50), max_size=3))
def test_gzip_of_any_number_of_members_inflates(parts: list[bytes]) -> None:
    assert gunzip(b"".join(map(gzip.compress, parts)), limit=1000) == b"".join(parts)


@pytest.mark.timeout(30)
def test_empty_members_take_no_longer_each_because_there_are_many() -> None:
    body = gzip.compress(b"") * 300_000  # takes a second; where each copied what is behind it, it took minutes
    assert gunzip(body, limit=1000) == b""


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(200 * 2**20), compresslevel=9)
    with pytest.raises(BodyTooLargeError, match="inflates to more than 5000000 bytes"):
        gunzip(bomb, limit=5_000_000)


def test_a_body_exactly_as_large_as_the_limit_passes() -> None:
    assert len(gunzip(gzip.compress(bytes(3 * 2**20)), limit=3 * 2**20)) == 3 * 2**20


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"not gzip", "is declared as gzip but is not"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "cut short"),
        (gzip.compress(b"x", mtime=0)[:5], "cut short"),
        (gzip.compress(b"x", mtime=0) + b"rest", "is declared as gzip but is not"),
        (zlib.compress(b"x"), "is declared as gzip but is not"),
    ],
)
def test_what_is_not_gzip_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedTelemetryError, match=sentence):
        gunzip(body, limit=1000)


async def _parts(*parts: bytes, then: float = 0.0) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    await asyncio.sleep(then)


async def test_a_body_that_stops_coming_is_not_waited_for() -> None:
    with pytest.raises(BodyTooSlowError, match=r"3 bytes of the body came, and then none for 0\.05 s"):
        await read_body(_parts(b"abc", then=60), limit=10, idle_s=0.05)


async def test_a_body_that_drips_for_ever_is_not_waited_for() -> None:
    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.01)

    with pytest.raises(BodyTooSlowError, match=r"not all in 0\.1 s"):
        await read_body(dripping(), limit=10**6, idle_s=0.05, total_s=0.1)


async def test_bodies_that_nothing_comes_of_take_no_room_and_those_that_are_held_do() -> None:
    memory = BodyMemory(8)

    async def silent() -> None:
        async with memory.body(_parts(then=60), limit=10):
            pytest.fail("its body never came")

    waiting = [asyncio.create_task(silent()) for _ in range(100)]
    await asyncio.sleep(0)
    async with memory.body(_parts(b"abcd", b"efgh"), limit=10) as body:
        assert body == b"abcdefgh"
        with pytest.raises(TooManyBodiesError, match="8 bytes of other bodies are being stored already"):
            async with memory.body(_parts(b"i"), limit=10):
                pytest.fail("there was no room")
    async with memory.body(_parts(b"123456789"), limit=10) as alone:
        assert alone == b"123456789"
    for task in waiting:
        task.cancel()
