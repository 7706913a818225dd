"""The search for text and names in the spans of attempts: in their bytes, before anything is decoded.

Decoding and reading an attempt takes a millisecond or more, scanning its bytes some microseconds. So attempts that
cannot contain the text are ruled out first, and only the others are decoded and read.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from lightning_instrumentation import semconv

from lightning_trainer.otlp.span_codec import attributes_to_proto
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables.spans import select_of_attempts
from lightning_trainer.types import Attempt, Span

_UNSURE = re.compile(r"[^\x00-\x7f]+")
"""Characters whose upper and lower case differ in bytes that ``bytes.lower`` leaves alone."""
_PATTERN = re.compile(r"\[[^\]]*\]?|[*?]")


class WantedText:
    """A text that is searched for, ignoring case."""

    def __init__(self, text: str) -> None:
        lower = text.lower()
        # Messages are recorded as JSON, by some tracers in ASCII alone.
        self._forms = {lower, *(json.dumps(lower, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))}
        self._sure = [_longest(_UNSURE.split(form)).encode() for form in self._forms]

    def may_be_in(self, body: bytes) -> bool:
        lower = body.lower()
        return any(sure in lower for sure in self._sure)

    def is_in(self, text: str) -> bool:
        """Whether a decoded text contains it."""
        lower = text.lower()
        return any(form in lower for form in self._forms)


class WantedName:
    """A name or shell pattern of an agent; case matters."""

    def __init__(self, pattern: str) -> None:
        self._sure = _longest(_PATTERN.split(pattern)).encode("utf-8", "replace")

    def may_be_in(self, body: bytes) -> bool:
        return self._sure in body


class WantedVersion:
    """A version that answered a call, as ``POLICY@v12``, ``v12`` or ``12``."""

    def __init__(self, name: str) -> None:
        number = name.rpartition("@")[2].removeprefix("v")
        known = number.isascii() and number.isdigit() and len(number) < 19
        # As the gateway records it; every encoder writes the fields of an attribute in OTLP's order.
        self._sure = attributes_to_proto({semconv.POLICY_VERSION: int(number)})[0].SerializeToString() if known else b""

    def may_be_in(self, body: bytes) -> bool:
        return self._sure in body


class InBytes(Protocol):
    """Something that a span's bytes have or lack."""

    def may_be_in(self, body: bytes) -> bool:
        """Whether a span's bytes can hold it; False is certain."""
        ...


def possible(connection: Connection, attempts: Sequence[Attempt], wanted: Sequence[InBytes]) -> list[bool]:
    """Return for each attempt whether its spans, and those that name only its rollout, can contain all that is wanted.

    This is also True if other spans may belong to the attempt by their trace or response id: those are not searched.
    """
    missing = {one.attempt_id: set(range(len(wanted))) for one in attempts}
    attempt_of: dict[str, list[str]] = {}
    for one in attempts:
        attempt_of.setdefault(one.rollout_id, []).append(one.attempt_id)
    for attempt_id, rollout_id, body in connection.execute(
        _BODIES, (json.dumps([*missing]), json.dumps([*attempt_of]))
    ):
        for owner in (attempt_id,) if attempt_id in missing else attempt_of.get(rollout_id, ()):
            if lacking := missing[owner]:
                lacking -= {index for index in lacking if wanted[index].may_be_in(body)}
    joined = {attempt_id for (attempt_id,) in connection.execute(_JOINED, (json.dumps([*missing]),))}
    return [not missing[one.attempt_id] or one.attempt_id in joined for one in attempts]


_JOINED = """
    SELECT DISTINCT attempt_id FROM spans AS own WHERE attempt_id IN (SELECT value FROM json_each(?))
    AND (EXISTS (SELECT 1 FROM spans AS other WHERE other.trace_id = own.trace_id AND other.attempt_id IS NULL)
         OR EXISTS (SELECT 1 FROM spans AS other
                    WHERE other.response_id = own.response_id AND other.attempt_id IS NULL))"""
_BODIES = """
    SELECT attempt_id, rollout_id, body FROM spans WHERE attempt_id IN (SELECT value FROM json_each(?))
    UNION ALL
    SELECT attempt_id, rollout_id, body FROM spans
    WHERE rollout_id IN (SELECT value FROM json_each(?)) AND attempt_id IS NULL"""


def says(connection: Connection, attempt: Attempt, wanted: WantedText) -> bool:
    """Whether the text occurs in what was said in an attempt, in a note on it, in its task's name or in its error."""
    if wanted.is_in(attempt.task_id) or wanted.is_in(attempt.error or ""):
        return True
    return any(wanted.is_in(text) for text in _texts(select_of_attempts(connection, [attempt.attempt_id])))


def _texts(spans: Iterable[Span]) -> Iterator[str]:
    for span in spans:
        for attributes in (span.attributes, *(event.attributes for event in span.events)):
            for name in semconv.CONTENT_KEYS & attributes.keys():
                if isinstance(value := attributes[name], str):
                    yield value


def _longest(parts: Iterable[str]) -> str:
    return max(parts, key=len, default="")
