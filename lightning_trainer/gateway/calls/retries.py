"""Retries: which requests are attempts at the same call, and what happens to the earlier one. A retried call is one
sample.

A client that times out makes its call again. Two requests are tries at one call if they have

1. the same ``Idempotency-Key`` and the same body, from the same rollout and attempt (other callers may use the same
   keys), or
2. ``x-stainless-retry-count`` of 1 or more (OpenAI's and Anthropic's clients send it), with the body and the
   ``traceparent`` of exactly one recent call: instrumented clients keep one span over all tries at a call. If several
   calls match, none is treated as the earlier try: dropping the wrong one would lose a good sample.

The earlier try is given up: canceled if it is still running, and marked as interrupted in the records. A client that
hangs up before the end of its answer gives that call up in any case, with or without such headers.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.gateway.caller import parent_of
from lightning_trainer.gateway.calls.exchange import CallRecord

_LONGEST_KEY = 256


@dataclass(frozen=True, slots=True)
class RetryKey:
    """What identifies a call across retries: requests with equal ``digest`` are, or may be, tries at one call."""

    digest: bytes
    certain: bool
    """Whether an equal digest alone is proof."""
    again: bool
    """Whether the client says that this request is a retry."""


def retry_key(path: str, headers: Mapping[str, str], raw: bytes, place: Mapping[str, str]) -> RetryKey | None:
    """Return the key that identifies retries of a request; None if the request has none.

    Args:
        place: attributes that identify the caller; only the rollout and the attempt count, because tries share these.
    """
    given, trace = headers.get("idempotency-key"), parent_of(headers)
    named = given or trace
    if not named or len(named) > _LONGEST_KEY:
        return None
    digest = hashlib.blake2b(raw, digest_size=16, person=b"key" if given else b"trace")
    whose = (place.get(semconv.ROLLOUT_ID), place.get(semconv.ATTEMPT_ID))
    digest.update(f"\0{path}\0{named}\0{whose}".encode())
    return RetryKey(digest.digest(), bool(given), headers.get("x-stainless-retry-count", "0") not in ("0", ""))


class Retries:
    """The recent calls, bounded in number and age; used on one event loop only."""

    def __init__(self, *, limit: int = 4096, keep_s: float = 900.0) -> None:
        self._limit = limit
        self._keep_s = keep_s
        self._known: OrderedDict[bytes, list[CallRecord]] = OrderedDict()
        self._since: dict[bytes, float] = {}

    async def begin(self, key: RetryKey, call: CallRecord) -> None:
        """Register a call, and give up the earlier call that it retries, if any.

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
