"""The fixed sequences that trainer and engine both score to prove what is served (promise 8).

They are drawn once from the vocabulary's size alone, so trainer, engine and a restarted run agree on them, and every
version of a policy is measured on the same tokens.
"""

_SEQUENCES = 4
_TOKENS = 32
_MULTIPLIER, _INCREMENT, _MODULUS = 6364136223846793005, 1442695040888963407, 2**64
"""Knuth's MMIX linear congruential generator: the same ids in every Python and library version."""


def probe_token_ids(vocabulary_size: int) -> tuple[tuple[int, ...], ...]:
    """Return 4 sequences of 32 ids, all below ``vocabulary_size``."""
    state, ids = vocabulary_size, []
    for _ in range(_SEQUENCES * _TOKENS):
        state = (_MULTIPLIER * state + _INCREMENT) % _MODULUS
        ids.append((state >> 32) % vocabulary_size)
    return tuple(tuple(ids[start : start + _TOKENS]) for start in range(0, len(ids), _TOKENS))
