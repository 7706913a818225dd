"""Time for one text of a million characters, whatever it holds, and for one of a message's length."""

import base64
import json
import random
import time
from collections.abc import Callable

from lightning_instrumentation.redaction import emails, keys
from lightning_instrumentation.redaction.rules import redactor

from benchmarks.common.rows import Row, at_most
from benchmarks.redaction.corpus import texts

TITLE = "Milliseconds of CPU for a text of 1,000,000 characters"
_LENGTH = 1_000_000
_LONGEST_MS = 50.0
_LONGEST_SHORT_US = 100.0


def run(quick: bool) -> list[Row]:
    draw = random.Random(0)
    binary = base64.b64encode(draw.randbytes(_LENGTH)).decode()
    kinds = {kind: "".join(texts(kind, 1000)) for kind in ("code", "json", "prose")}
    worst = {
        "base64 in one piece": binary,
        "base64 in lines": base64.encodebytes(draw.randbytes(_LENGTH)).decode(),
        "hashes": "\n".join(draw.randbytes(32).hex() for _ in range(_LENGTH // 64)),
        "records with ids": json.dumps([{"id": draw.randbytes(12).hex(), "n": n} for n in range(_LENGTH // 40)]),
        "assignments without a secret": "password=aaaaaaa1 " * (_LENGTH // 18),
        "assignments": "password=q7Xk2vPz9 " * (_LENGTH // 19),
        "beginnings of keys": "sk-" * (_LENGTH // 3),
        "beginnings of private keys": "-----BEGIN PRIVATE KEY-----" * (_LENGTH // 27),
        "beginnings of URLs": "://a:b@" * (_LENGTH // 7),
        "one letter": "a" * _LENGTH,
    }
    rounds = 3 if quick else 10
    rows = []
    for name, text in (*kinds.items(), *worst.items()):
        text = (text * (_LENGTH // max(1, len(text)) + 1))[:_LENGTH]
        milliseconds = _least(lambda text=text: keys.redact(text), rounds) * 1e3
        rows.append(at_most("speed", name, milliseconds, _LONGEST_MS, "ms"))
    addresses = {
        "e-mail: signs alone": "@" * _LENGTH,
        "e-mail: halves of addresses": "a@a" * (_LENGTH // 3),
        "e-mail: addresses alone": "a@b.co " * (_LENGTH // 7),
        "e-mail: addresses side by side": "x@y.zz." * (_LENGTH // 7),
        "e-mail: ends that are too long": ("a@b." + "c" * 30) * (_LENGTH // 34),
        "e-mail: one word before a sign": "a" * _LENGTH + "@",
        "e-mail: prose with addresses": (kinds["prose"][:200] + " ann@example.com. ") * (_LENGTH // 217),
    }
    for name, text in addresses.items():
        milliseconds = _least(lambda text=text: emails.redact(text[:_LENGTH]), rounds) * 1e3
        rows.append(at_most("speed", name, milliseconds, _LONGEST_MS, "ms"))
    pattern = redactor(["regex:(a+)+b"])
    rows.append(
        at_most("speed", "a user's (a+)+b on one letter", _least(lambda: pattern("a" * _LENGTH), 3) * 1e3, 100, "ms")
    )
    short = texts("prose", 100)
    apart = _least(lambda: [keys.redact(text) for text in short], rounds) / max(1, len(short)) * 1e6
    rows.append(at_most("speed", "a text of 2,000 characters", apart, _LONGEST_SHORT_US, "us"))
    return rows


def _least(work: Callable[[], object], rounds: int) -> float:
    """Return the CPU-seconds of the quickest round, since others may use the machine."""
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)
