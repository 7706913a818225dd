"""Mutations of JSON documents and raw bytes that keep most of a body's shape: what can still be read gets furthest."""

import json
import random
import string
from collections.abc import Sequence
from typing import Any

_LARGE = "x" * 20_000
_REPEATS = (1, 2, 50)
"""The last at most once a document: fifty times a list of spans, four times over, took 8 GB and ten minutes."""
_EXTREMES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30),
    *(0.0, -0.0, 1e308, -1e308, 5e-324, 1e6, -1e6, 1e6 + 0.1, 0.1 + 0.2, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "\ud800",
        "\udfff\ud800",
        "\u202e",
        "\x1b[31m",
        "é" * 300,
        _LARGE,
        "null",
        "NaN",
        "../../x",
    ),
    *([], {}, [[]], [{}], {"": ""}, [None], {"a": {"b": [1, {"c": None}]}}, [0] * 500, ["a"] * 100),
)
_RAW = (
    *(
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b"0",
        b"nan",
        b"{",
        b"}",
        b"[" * 5000,
        b'{"a":' * 3000,
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
    ),
    *(b'{"value": 1e999}', b'{"value": ' + b"9" * 5000 + b"}", b'{"value":1,"value":2}', b'"\\ud800"', b"\x00" * 64),
)


def mutated(document: Any, rng: random.Random) -> bytes:
    """Return a document as JSON with something about it changed; one in six stays as it is."""
    roll = rng.random()
    if roll < 1 / 6:
        return _dumps(document)
    if roll < 0.2:
        return rng.choice(_RAW)
    changed = document  # changed by copying
    for change in range(rng.choice((1, 1, 1, 2, 4))):
        changed = _changed(changed, rng, _REPEATS if change == 0 else _REPEATS[:2])
    raw = _dumps(changed)
    return bytes_mutated(raw, rng) if rng.random() < 0.15 else raw


def _changed(node: Any, rng: random.Random, repeats: Sequence[int]) -> Any:
    """Walk down at random and change a value; a list may be extended by as many copies of itself as ``repeats`` has."""
    if isinstance(node, dict) and node and rng.random() < 0.85:
        key = rng.choice(list(node))
        if rng.random() < 0.1:
            return {other: value for other, value in node.items() if other != key}
        if rng.random() < 0.08:
            return {**node, rng.choice((key + "x", "", "__class__", key.upper(), "\ud800", _LARGE[:300])): node[key]}
        return {**node, key: _changed(node[key], rng, repeats)}
    if isinstance(node, list) and node and rng.random() < 0.8:
        at = rng.randrange(len(node))
        if rng.random() < 0.15:
            return node + node * rng.choice(repeats)
        return [*node[:at], _changed(node[at], rng, repeats), *node[at + 1 :]]
    return _replaced(node, rng)


def _replaced(node: Any, rng: random.Random) -> Any:
    roll = rng.random()
    if roll < 0.6:
        return rng.choice(_EXTREMES)
    if roll < 0.7:
        deep: Any = node
        for _ in range(rng.choice((3, 40, 120, 900))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    if isinstance(node, str):
        return rng.choice(
            (node * 50, node[: len(node) // 2], node.upper(), "".join(rng.choices(string.printable, k=20)))
        )
    if isinstance(node, bool) or node is None:
        return rng.choice(("true", 1, [node]))
    if isinstance(node, int | float):
        return rng.choice((-node, node + 0.5, node * 10**9, str(node), [node]))
    return rng.choice(_EXTREMES)


def _dumps(document: Any) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=True).encode()
    except (ValueError, RecursionError):
        return b"{}"


def bytes_mutated(raw: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, or insert bytes."""
    if not raw:
        return rng.randbytes(8)
    at = rng.randrange(len(raw))
    end = min(len(raw), at + rng.choice((1, 4, 64)))
    match rng.randrange(6):
        case 0:
            return raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :]
        case 1:
            return raw[:at]
        case 2:
            return raw[:at] + raw[end:]
        case 3:
            return raw[:end] + raw[at:end] * rng.choice((1, 20)) + raw[end:]
        case 4:
            return raw[:at] + rng.choice((b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\x00", b"\xf4\x90\x80\x80")) + raw[at:]
        case _:
            return raw[:at] + rng.randbytes(rng.choice((1, 8, 32))) + raw[end:]
