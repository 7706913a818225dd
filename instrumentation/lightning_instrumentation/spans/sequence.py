"""Sequence numbers on an attempt's spans, so that the daemon can tell whether all of them have arrived.

Each process numbers its spans of an attempt from 1 in the order of their starts, under its own random id, and a span
records at its end how many had started by then. So a reader of a span knows which others must exist; the root span,
which ends last, covers its whole process. A forgotten numbering is restarted under another id, never continued, so
earlier statements stay true.

This module also remembers which responses an attempt got in this process, for rewards that name one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

_MOST_ATTEMPTS = 4096
_MOST_ANSWERS = 4096


class _Sequence:
    __slots__ = ("answers", "id", "started")

    def __init__(self) -> None:
        self.id = os.urandom(8).hex()
        self.started = 0
        self.answers: dict[str, None] = {}
        """Ids of the newest responses, in order."""


class Sequences:
    """The numberings of this process, by attempt; beyond ``_MOST_ATTEMPTS`` the least recently used is forgotten."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start over, in a forked child or when another daemon becomes the receiver."""
        self._lock = threading.Lock()
        self._of_attempt: OrderedDict[str, _Sequence] = OrderedDict()

    def take(self, attempt_id: str) -> tuple[str, int]:
        """Return the numbering's id and the next number, for a span that starts."""
        with self._lock:
            sequence = self._of_attempt.get(attempt_id)
            if sequence is None:
                sequence = self._of_attempt[attempt_id] = _Sequence()
                if len(self._of_attempt) > _MOST_ATTEMPTS:
                    self._of_attempt.popitem(last=False)
            else:
                self._of_attempt.move_to_end(attempt_id)
            sequence.started += 1
            return sequence.id, sequence.started

    def started(self, attempt_id: str) -> tuple[str, int] | None:
        """Return the numbering's id and how many of its spans have started; None if none has."""
        with self._lock:
            sequence = self._of_attempt.get(attempt_id)
            return None if sequence is None else (sequence.id, sequence.started)

    def answered(self, attempt_id: str, response_id: str) -> None:
        """Remember a response that a call of the attempt got."""
        with self._lock:
            sequence = self._of_attempt.get(attempt_id)
            if sequence is not None:
                sequence.answers[response_id] = None
                if len(sequence.answers) > _MOST_ANSWERS:
                    del sequence.answers[next(iter(sequence.answers))]

    def has_answer(self, attempt_id: str, response_id: str) -> bool:
        """Whether a call of the attempt got the response in this process, recently enough to be remembered."""
        with self._lock:
            sequence = self._of_attempt.get(attempt_id)
            return sequence is not None and response_id in sequence.answers


sequences = Sequences()
