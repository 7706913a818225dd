"""The experts of a run of positions: what is written is read, and a part of it is the same positions'."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.experts import RoutedExperts


@st.composite
def _experts(draw) -> RoutedExperts:
    layers, top_k, width, positions = (draw(st.integers(1, most)) for most in (3, 3, 2, 6))
    size = layers * top_k * width * positions
    return RoutedExperts(draw(st.integers(0, 9)), layers, top_k, width, draw(st.binary(min_size=size, max_size=size)))


@given(_experts())
def test_what_is_written_is_read(experts) -> None:
    assert RoutedExperts.decode(experts.encode()) == experts


@given(_experts(), st.integers(0, 20), st.integers(0, 20))
def test_a_part_has_the_positions_that_are_asked_for(experts, start, end) -> None:
    rows = {
        experts.start + place: experts.ids[place * experts.row_bytes : (place + 1) * experts.row_bytes]
        for place in range(len(experts))
    }
    part = experts.between(start, end)
    wanted = {position: row for position, row in rows.items() if start <= position < end}
    found = {} if part is None else dict(zip(range(part.start, part.end), _rows(part), strict=True))
    assert found == wanted
    assert (part is None) == (not wanted)


def _rows(experts: RoutedExperts) -> list[bytes]:
    return [experts.ids[place : place + experts.row_bytes] for place in range(0, len(experts.ids), experts.row_bytes)]


_ONE = RoutedExperts(3, 2, 2, 1, bytes(range(8)))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"no zlib", "cannot be read"),
        (_ONE.encode()[:-4], "end before their end"),
        (zlib.compress(b"EXP1"), "cannot be read"),
        (zlib.compress(b"SUP1" + zlib.decompress(_ONE.encode())[4:]), "begin with b'SUP1'"),
        (zlib.compress(zlib.decompress(_ONE.encode())[:-4]), "hold 1 positions and promise 2"),
        (zlib.compress(zlib.decompress(_ONE.encode())[:-1]), "7 bytes, which are not whole rows of 4"),
    ],
)
def test_what_is_damaged_is_refused(body, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        RoutedExperts.decode(body)


def test_what_is_too_large_is_refused_before_it_is_unpacked() -> None:
    body = RoutedExperts(0, 1, 1, 1, bytes(10_000)).encode()
    with pytest.raises(ValueError, match="larger than 1000 bytes"):
        RoutedExperts.decode(body, limit_bytes=1000)


@pytest.mark.parametrize("changes", [{"start": -1}, {"width": 4}, {"layers": 0}])
def test_what_cannot_be_is_refused(changes) -> None:
    with pytest.raises(ValueError, match="a position is 0 or more, an id has 1 or 2 bytes"):
        RoutedExperts(**{"start": 0, "layers": 1, "top_k": 1, "width": 1, "ids": b"", **changes})
