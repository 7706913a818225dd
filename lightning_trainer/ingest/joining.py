"""Joining: which records describe the same call.

Several instrumentations may observe an agent at several levels: a LangChain span around an OpenAI client's span around
our client's around the gateway's record, in one trace or in several. The first rule that applies decides:

1. Records with the same response id are the same call, in whatever traces (LangChain's callbacks and the client's
   patches do not share one, nor do two tracer providers), unless they contradict each other: ``agreement.py``.
2. A record without an id that encloses others belongs to the last of them: the ones before it were failed tries. A
   record without an id inside another belongs to that one if it is the last in it. Records with two different response
   ids are never one call. A call of our client counts as inside the other tracer's span in which it says it was made,
   even across traces.
3. A record without an id belongs to the record whose time lies within its own, or within whose time it lies, that was
   written by another instrumentation, has exactly the same text (or the same parent, if one of the two has no text),
   and is the nearest in time.

Records that name two attempts are never one call. Apart from sorting, time is linear in the number of records, as long
as calls without ids do not all overlap.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

from lightning_instrumentation import semconv

from lightning_trainer.ingest.agreement import (
    Statement,
    apart,
    by_start,
    other_tokens,
    parted,
    statement_of,
)
from lightning_trainer.ingest.ancestry import Identity, SpanKey, enclosing, key_of, nearest_above, outer_of
from lightning_trainer.ingest.dialects import lightning
from lightning_trainer.ingest.dialects.dialect import ModelCall
from lightning_trainer.ingest.dialects.registry import DIALECTS
from lightning_trainer.ingest.dialects.tokens import carries_tokens
from lightning_trainer.types import Span

_PLACE = (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID)
_CONVERSATION = {dialect.name: dialect.conversation for dialect in DIALECTS}


def join(
    records: Sequence[ModelCall], spans: Mapping[SpanKey, Span], identities: Mapping[SpanKey, Identity]
) -> Iterator[tuple[ModelCall, ...]]:
    """Yield the calls, each with all of its records, the most faithful one first.

    Args:
        records: from the spans that are model calls.
        spans: all spans, to find those between the records.
        identities: the identity of each span.
    """
    by_response: dict[str | None, list[ModelCall]] = {}
    for record in records:
        by_response.setdefault(record.response_id, []).append(record)
    without_id = by_response.pop(None, [])
    groups = (group for found in by_response.values() for group in _of_one_id(found, spans, identities))
    if without_id:  # otherwise nesting and time are not needed
        groups = _Joining([*groups, *([record] for record in without_id)], spans, identities).groups()
    for group in groups:
        yield _most_faithful_first(group)


def _of_one_id(
    found: list[ModelCall], spans: Mapping[SpanKey, Span], identities: Mapping[SpanKey, Identity]
) -> Iterator[list[ModelCall]]:
    """Yield the calls among the records with one response id: nearly always a single call."""
    if len(found) == 1 or (len(found) == 2 and _plainly_one(*found)):
        yield found
        return
    statements = [statement_of(record, identities) for record in found]
    ordered = sorted(range(len(found)), key=lambda place: by_start(statements[place]))
    pieces = [[statements[place]] for place in ordered]
    for places in parted(pieces, lambda: nearest_above(spans, {statement.key for statement in statements})):
        yield [found[ordered[place]] for place in places]


def _plainly_one(one: ModelCall, other: ModelCall) -> bool:
    """Whether this is the usual pair, recognized without reading identities: a client's span that encloses the
    gateway's record."""
    span, inner = one.span, other.span
    if inner.scope != semconv.GATEWAY_SCOPE:
        span, inner = inner, span
    return (
        inner.scope == semconv.GATEWAY_SCOPE != span.scope
        and inner.parent_span_id == span.span_id
        and inner.trace_id == span.trace_id
        and all(inner.attributes.get(name) == span.attributes.get(name) for name in _PLACE)
    )


def _most_faithful_first(group: Sequence[ModelCall]) -> tuple[ModelCall, ...]:
    if len(group) == 2:  # nearly always the gateway's record and the client's, which the first check settles
        one, other = group
        by_gateway = one.span.scope == semconv.GATEWAY_SCOPE
        if by_gateway != (other.span.scope == semconv.GATEWAY_SCOPE):
            return (one, other) if by_gateway else (other, one)
    return tuple(sorted(group, key=faithfulness))


def faithfulness(record: ModelCall) -> tuple:
    """Return a sort key: the gateway's record first, then records with token ids, then those closest to the wire."""
    span = record.span
    return (
        not lightning.is_gateway(span),
        not carries_tokens(span),
        not lightning.is_ours(span),
        record.complete is False,
        span.end_ns - span.start_ns,  # of nested records the inner one is shorter
        span.start_ns,
        key_of(span),
    )


class _Joining:
    """Rules 2 and 3, applied to the result of rule 1: calls with an id, each with one record or more, and records
    without an id."""

    def __init__(
        self, calls: Sequence[list[ModelCall]], spans: Mapping[SpanKey, Span], identities: Mapping[SpanKey, Identity]
    ) -> None:
        records = (record for call in calls for record in call)
        self._records = sorted(records, key=lambda record: (record.span.start_ns, key_of(record.span)))
        place_of = {key_of(record.span): place for place, record in enumerate(self._records)}
        self._group = list(range(len(self._records)))
        self._members: dict[int, list[int]] = {}
        for call in calls:
            places = sorted(place_of[key_of(record.span)] for record in call)
            self._members[places[0]] = places
            for place in places:
                self._group[place] = places[0]
        self._named = [record.response_id is not None for record in self._records]  # by root: whether it has an id
        self._spans = spans
        self._identities = identities
        self._statements: dict[int, Statement] = {}
        self._words: dict[int, object] = {}

    def groups(self) -> Iterator[list[ModelCall]]:
        self._by_nesting()
        self._by_time()
        return ([self._records[place] for place in sorted(places)] for _, places in sorted(self._members.items()))

    def _root(self, place: int) -> int:
        while self._group[place] != place:
            self._group[place] = self._group[self._group[place]]
            place = self._group[place]
        return place

    def _unite(self, one: int, other: int, differ: Callable[[Statement, Statement], bool]) -> None:
        """Merge two groups, unless each has a response id (rule 1 has decided about them) or their records differ."""
        low, high = sorted((self._root(one), self._root(other)))
        if low == high or (self._named[low] and self._named[high]):
            return
        if any(
            differ(self._statement(mine), self._statement(yours))
            for mine in self._members[low]
            for yours in self._members[high]
        ):
            return
        self._group[high] = low
        self._named[low] |= self._named[high]
        self._members[low] += self._members.pop(high)

    def _statement(self, place: int) -> Statement:
        if place not in self._statements:
            self._statements[place] = statement_of(self._records[place], self._identities)
        return self._statements[place]

    def _by_nesting(self) -> None:
        places = {key_of(record.span): place for place, record in enumerate(self._records)}
        above_of = nearest_above(self._spans, places)
        last_inside: dict[int, int] = {}
        for place, record in enumerate(self._records):  # by start, so the last one wins
            above = above_of.get(key_of(record.span))
            if above is not None and places[above] != place:
                last_inside[places[above]] = place
        for outer, inner in sorted(last_inside.items()):
            self._unite(outer, inner, apart)
        for outer, inner in sorted(self._last_across_traces(places).items()):
            self._unite(outer, inner, apart)

    def _last_across_traces(self, places: Mapping[SpanKey, int]) -> dict[int, int]:
        """Return for each record that encloses calls of our client in another trace the last of those calls."""
        outer_of_place = {place: outer for place, one in enumerate(self._records) if (outer := outer_of(one.span))}
        if not outer_of_place:
            return {}
        inside = enclosing(self._spans, places)
        return {
            places[inside[outer]]: place  # by start, so the last one wins
            for place, outer in outer_of_place.items()
            if outer in inside
        }

    def _by_time(self) -> None:
        """Apply rule 3 to every record without an id that no rule has joined with another yet."""
        starts = [record.span.start_ns for record in self._records]
        longest_ns = max(record.span.end_ns - record.span.start_ns for record in self._records)
        scopes = {root: {self._records[one].span.scope for one in members} for root, members in self._members.items()}
        for place, record in enumerate(self._records):
            if record.response_id is not None or len(self._members[self._root(place)]) > 1:
                continue
            span = record.span
            # Any record whose time overlaps this one's began in this window.
            window = range(bisect_left(starts, span.start_ns - longest_ns), bisect_right(starts, span.end_ns))
            nearest = self._nearest(place, window, scopes)
            if nearest is None:
                continue
            both = scopes[self._root(place)] | scopes[self._root(nearest)]
            self._unite(place, nearest, _say_otherwise)
            # Even if they contradict each other: no further record of that instrumentation is considered for this one.
            scopes[self._root(place)] = both

    def _nearest(self, place: int, window: range, scopes: Mapping[int, set[str]]) -> int | None:
        """Return the record in the window that rule 3 joins with this one, the nearest in time; None if there is none.

        Args:
            scopes: the instrumentation scopes of each group's records, by its root.
        """
        span = self._records[place].span
        near = (
            other
            for other in window
            if span.scope not in scopes[self._root(other)]
            and _nested(span, self._records[other].span)
            and self._same(place, other)
        )
        return min(
            near, key=lambda other: (abs(self._records[other].span.start_ns - span.start_ns), other), default=None
        )

    def _same(self, place: int, other: int) -> bool:
        one, two = self._records[place].span, self._records[other].span
        words, others = self._said(place), self._said(other)
        if words is not None and others is not None:
            return words == others
        siblings = one.trace_id == two.trace_id and one.parent_span_id == two.parent_span_id
        return siblings and one.parent_span_id is not None

    def _said(self, place: int) -> object:
        """Return the last question and the answer; None if the record has no answer's text."""
        if place not in self._words:
            record = self._records[place]
            said = _CONVERSATION[record.dialect](record.span)
            question = [_plain(message) for message in said.input_messages[-1:]]
            answer = [_plain(message) for message in said.output_messages]
            self._words[place] = (question, answer) if any(answer) else None
        return self._words[place]


def _say_otherwise(one: Statement, other: Statement) -> bool:
    return apart(one, other) or other_tokens(one, other)


def _plain(message: Mapping) -> list[tuple]:
    """Return the text and the tool calls of a message; ids and order of keys differ between instrumentations."""
    return [
        (part.get("name"), repr(part.get("arguments") or part.get("content") or part.get("response")))
        for part in message.get("parts") or ()
        if isinstance(part, Mapping)
    ]


def _nested(one: Span, other: Span) -> bool:
    return (one.start_ns <= other.start_ns and other.end_ns <= one.end_ns) or (
        other.start_ns <= one.start_ns and one.end_ns <= other.end_ns
    )
