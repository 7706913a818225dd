"""A support says of every token what it could have been, in the shortest form, and comes back from bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.sampling import ALL_BUT, BITS, ONLY, Support, entries_of, holds, pattern_of, size_of, support_of

_VOCABULARY = 70
_entries = st.sets(st.integers(0, _VOCABULARY - 1), min_size=1).map(sorted)


@given(_entries)
def test_each_form_names_the_same_ids(entries: list[int]) -> None:
    pattern = pattern_of(entries, _VOCABULARY)
    assert list(entries_of(pattern, _VOCABULARY)) == entries
    assert size_of(pattern, _VOCABULARY) == len(entries)
    assert [token for token in range(_VOCABULARY) if holds(pattern, token)] == entries


@pytest.mark.parametrize(
    ("entries", "form"), [([5], ONLY), (list(range(1, 70)), ALL_BUT), (list(range(0, 70, 2)), BITS)]
)
def test_the_shortest_form_is_taken(entries, form):
    assert pattern_of(entries, _VOCABULARY)[0] == form


@given(st.lists(st.none() | _entries, max_size=6))
def test_a_support_comes_back_from_bytes(entries_L: list) -> None:
    support = support_of(_VOCABULARY, entries_L)
    assert Support.decode(support.encode()) == support
    assert support.sizes_L == [_VOCABULARY if entries is None else len(entries) for entries in entries_L]


def test_a_token_outside_is_found():
    support = support_of(_VOCABULARY, [[1, 2], None, list(range(0, 70, 2))])
    assert support.first_outside((2, 69, 68)) is None
    assert support.first_outside((2, 69, 67)) == 2
    assert support.first_outside((3, 69, 68)) == 0
    assert support.first_outside((2, 70, 68)) == 1


@pytest.mark.parametrize("body", [b"", b"nothing", support_of(9, [[1]]).encode()[:-3]])
def test_damaged_bytes_are_refused(body):
    with pytest.raises(ValueError, match="support"):
        Support.decode(body)
