"""Shadow rollouts: which of them are whole, and the root spans that end them.

A shadow consists of the candidate's answers to the calls of one live attempt. It is whole when the live attempt has
ended and the candidate has answered each call that the live version answered; then a root span with the live attempt's
input ends it, and judges can read it. A shadow that lacks a call says nothing and is left out.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from lightning_instrumentation import semconv

from lightning_trainer.gateway.shadow import shadow_trace, shadowed
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import canaries
from lightning_trainer.types import AttributeValue, Call, RolloutMode, Span, SpanSink

_GRACE_S = 60.0
"""Seconds after a live attempt has ended, for calls that the candidate has yet to answer."""
_AT_ONCE = 50
SCOPE = "lightning.canary"


@dataclass(slots=True)
class Shadows:
    """The shadow attempts of one candidate that are settled."""

    whole: dict[str, str] = field(default_factory=dict)
    """Live attempt by shadow attempt: both have ended, and have the same calls."""
    incomplete: set[str] = field(default_factory=set)
    """Shadow attempts that lack a call, and are not compared."""
    others: set[str] = field(default_factory=set)
    """Shadow attempts of another candidate, which say nothing about this one."""

    @property
    def settled(self) -> set[str]:
        """Return the shadow attempts that need not be looked at again."""
        return {*self.whole, *self.incomplete, *self.others}


async def settle(
    shadows: Shadows, store: Store, sink: SpanSink, *, policy: str, version: int, since_ns: int
) -> list[str]:
    """End the shadows whose live attempts have ended; return those that became whole.

    Raises:
        StoreError: the store cannot be read or written.
    """
    seen = shadows.settled
    became: list[str] = []
    # Some never end, so newer ones are looked at as well, however many of them there are.
    find = partial(canaries.select_shadows, policy=policy, since_ns=since_ns)
    while found := await store.scan(partial(find, known=sorted(seen))):
        seen.update(found)
        mine = {name: live for name in found if (live := shadowed(name, version)) is not None}
        shadows.others.update(set(found) - mine.keys())
        names = list(mine)
        for start in range(0, len(names), _AT_ONCE):
            some = {name: mine[name] for name in names[start : start + _AT_ONCE]}
            spans = await store.spans_of_attempts([*some, *some.values()])
            ends, incomplete = await asyncio.to_thread(_settled, some, spans, policy)
            if ends:
                await sink.append(list(ends.values()))
            shadows.whole.update({name: some[name] for name in ends})
            shadows.incomplete.update(incomplete)
            became += ends
    return became


def _settled(some: Mapping[str, str], spans: Sequence[Span], policy: str) -> tuple[dict[str, Span], set[str]]:
    """Return the root spans of shadows that are whole, and the shadows that never will be."""
    roots = {
        span.attributes[semconv.ATTEMPT_ID]: span
        for span in spans
        if span.attributes.get(semconv.ROLLOUT_ROOT) is True and semconv.ATTEMPT_ID in span.attributes
    }
    calls: dict[str, list[Call]] = {}
    for call in read_spans(spans).calls:
        if call.policy == policy and call.complete and call.attempt_id is not None:
            calls.setdefault(call.attempt_id, []).append(call)
    ends: dict[str, Span] = {}
    incomplete: set[str] = set()
    for name, live in some.items():
        root, own = roots.get(live), calls.get(name, [])
        if root is None:
            continue  # it is still running
        if own and len(own) >= len(calls.get(live, [])):
            ends[name] = _end(name, root, own)
        elif time.time_ns() - root.end_ns > _GRACE_S * 1e9:
            incomplete.add(name)
    return ends, incomplete


def _end(name: str, live: Span, calls: Sequence[Call]) -> Span:
    trace_id, span_id = shadow_trace(name)
    first = min(calls, key=attrgetter("start_ns"))
    copied = (semconv.TASK_ID, semconv.ROLLOUT_INPUT)
    attributes: dict[str, AttributeValue] = {key: live.attributes[key] for key in copied if key in live.attributes}
    attributes |= {
        semconv.ATTEMPT_ID: name,
        semconv.ROLLOUT_ID: first.rollout_id or name,
        semconv.GROUP_ID: name,
        semconv.ROLLOUT_MODE: RolloutMode.SHADOW.value,
        semconv.ROLLOUT_ROOT: True,
    }
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=None,
        name="shadow rollout",
        start_ns=first.start_ns,
        end_ns=max(call.end_ns for call in calls),
        attributes=attributes,
        scope=SCOPE,
    )
