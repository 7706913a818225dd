"""Bodies stay under their bound, whatever they claim to be."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.ingest.bodies import BodyTooLargeError, gunzip, read_body


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


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(200 * 2**20), compresslevel=9)
    with pytest.raises(BodyTooLargeError, match="inflates to more than 5000000 bytes"):
        gunzip(bomb, limit=5_000_000)


def test_a_body_exactly_as_large_as_the_limit_passes() -> None:
    assert len(gunzip(gzip.compress(bytes(3 * 2**20)), limit=3 * 2**20)) == 3 * 2**20


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"not gzip", "is said to be gzip and is not"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "cut short"),
        (gzip.compress(b"x", mtime=0)[:5], "cut short"),
        (gzip.compress(b"x", mtime=0) + b"rest", "is said to be gzip and is not"),
        (zlib.compress(b"x"), "is said to be gzip and is not"),
    ],
)
def test_what_is_not_gzip_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedTelemetryError, match=sentence):
        gunzip(body, limit=1000)
