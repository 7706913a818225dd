"""Token ids at rest behave like the tuple that they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.spans.packing import pack_token_ids

from lightning_trainer.token_ids import TokenIds, packed

_ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=12).map(tuple)


@given(_ids, _ids, st.slices(8))
def test_like_the_tuple_in_everything_that_is_asked_of_it(ids: tuple[int, ...], other: tuple[int, ...], part: slice):
    at_rest = TokenIds(pack_token_ids(ids))

    assert (len(at_rest), tuple(at_rest), at_rest[part], repr(at_rest)) == (len(ids), ids, ids[part], repr(ids))
    assert at_rest == ids == at_rest
    assert hash(at_rest) == hash(ids)
    assert (at_rest == other) is (ids == other) is (at_rest == TokenIds(packed(other)))
    assert at_rest + other == ids + other == ids + TokenIds(packed(other)) == at_rest + TokenIds(packed(other))
    assert bool(at_rest) is bool(ids)
    assert at_rest != list(ids)


@given(_ids, _ids)
def test_bytes_start_with_each_other_exactly_when_the_ids_do(ids: tuple[int, ...], other: tuple[int, ...]):
    assert packed(ids + other).startswith(packed(TokenIds(packed(ids))))
    assert packed(ids).startswith(packed(other)) is (ids[: len(other)] == other)


def test_bytes_that_are_no_ids_are_refused():
    with pytest.raises(ValueError, match="5 bytes are not packed token ids: each takes 4"):
        TokenIds(b"12345")
