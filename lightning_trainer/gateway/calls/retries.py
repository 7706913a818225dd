"""Two tries at one call are one sample: which calls are tries at the same one, and what becomes of the earlier try.

A client that ran out of patience makes its call again. What makes two requests tries at one call:

1. the same ``Idempotency-Key`` and the same body, from the same rollout and attempt (others may count from 1 too), or
2. ``x-stainless-retry-count`` of 1 or more (OpenAI's and Anthropic's clients send it), with the body and the
   ``traceparent`` of exactly one call of late: instrumented clients keep one span over all tries at a call. Where
   several calls fit, none is taken for the earlier try: dropping the wrong one would lose a good sample.

The earlier try is given up: cancelled where it still runs, and interrupted in the records. A client that hangs up
before the end of its answer gives that call up anyway, with or without such headers.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.gateway.calls.call_record import CallRecord

_LONGEST_KEY = 256


@dataclass(frozen=True, slots=True)
class RetryKey:
    """Requests with equal ``digest`` are, or may be, tries at one call."""

    digest: bytes
    certain: bool
    """Whether an equal digest alone says so."""
    again: bool
    """Whether the client says that this is not its first try."""


def retry_key(path: str, headers: Mapping[str, str], raw: bytes, place: Mapping[str, str]) -> RetryKey | None:
    """Return what a request can be recognised by, None where there is nothing.

    Args:
        place: attributes that say whose the call is; only the rollout and the attempt count, which tries share.
    """
    given, trace = headers.get("idempotency-key"), headers.get("traceparent")
    named = given or trace
    if not named or len(named) > _LONGEST_KEY:
        return None
    digest = hashlib.blake2b(raw, digest_size=16, person=b"key" if given else b"trace")
    whose = (place.get(semconv.ROLLOUT_ID), place.get(semconv.ATTEMPT_ID))
    digest.update(f"\0{path}\0{named}\0{whose}".encode())
    return RetryKey(digest.digest(), bool(given), headers.get("x-stainless-retry-count", "0") not in ("0", ""))


class Retries:
    """The calls of late, bounded in number and age; used on one event loop only."""

    def __init__(self, *, limit: int = 4096, keep_s: float = 900.0) -> None:
        self._limit = limit
        self._keep_s = keep_s
        self._known: OrderedDict[bytes, list[CallRecord]] = OrderedDict()
        self._since: dict[bytes, float] = {}

    async def begin(self, key: RetryKey, call: CallRecord) -> None:
        """Note a call, and give up the one that it is another try at.

        Raises:
            RefusalError: the earlier try's record cannot be taken back; 503.
        """
        self._forget_old()
        earlier = [known for known in self._known.get(key.digest, ()) if not known.abandoned.done()]
        if key.certain or (key.again and len(earlier) == 1):
            for known in earlier:
                await known.abandon("the caller tried again")
            earlier = []
        self._known[key.digest] = [*earlier, call]
        self._known.move_to_end(key.digest)
        self._since[key.digest] = time.monotonic()

    def _forget_old(self) -> None:
        while self._known:
            oldest = next(iter(self._known))
            if len(self._known) < self._limit and time.monotonic() - self._since[oldest] < self._keep_s:
                return
            del self._known[oldest], self._since[oldest]
