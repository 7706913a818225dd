"""Whether records with the same response id can describe one call: they must not contradict each other.

A response id alone does not prove it: some servers number their answers from a small range or give all of them the
same id, and some let the caller choose it. The other evidence is the attempt, the tokens, and the time. One
instrumentation makes one span per call, so two spans of one scope are two calls unless one encloses the other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from lightning_instrumentation import semconv

from lightning_trainer.ingest.ancestry import Identity, SpanKey, key_of
from lightning_trainer.ingest.dialects.dialect import ModelCall
from lightning_trainer.ingest.dialects.tokens import token_bytes

_APART_NS = 1_000_000_000
"""Tolerance in time: records of one process share a clock and nest exactly; the gateway may have another machine's
clock."""
_COMPARED_AT_ONCE = 64
"""Limits the work: the number of records with one response id, close in time, that are compared with each other."""


class Statement(NamedTuple):
    """The evidence in a record about which call it describes."""

    trace_id: str
    span_id: str
    scope: str
    start_ns: int
    end_ns: int
    rollout_id: str | None
    attempt_id: str | None
    tokens: tuple[bytes, ...] | None
    """Packed ids of the prompt, then of each choice, empty if missing; None if the record has only text."""
    whole: bool
    """False if the record ends before the answer does, so its tokens may be only the answer's first ones."""

    @property
    def key(self) -> SpanKey:
        return (self.trace_id, self.span_id)

    @property
    def by_gateway(self) -> bool:
        """Whether the gateway wrote the record."""
        return self.scope == semconv.GATEWAY_SCOPE


def statement_of(record: ModelCall, identities: Mapping[SpanKey, Identity]) -> Statement:
    """Return the evidence in the record."""
    span = record.span
    key = key_of(span)
    identity = identities[key]
    return Statement(
        *key,
        span.scope,
        span.start_ns,
        span.end_ns,
        identity.rollout_id,
        identity.attempt_id,
        token_bytes(span),
        record.complete is not False,
    )


def apart(one: Statement, other: Statement) -> bool:
    """Whether two records are of two calls in any case: of two attempts, or both from the gateway."""
    if one.by_gateway and other.by_gateway:
        return True
    return _differ(one.rollout_id, other.rollout_id) or _differ(one.attempt_id, other.attempt_id)


def other_tokens(one: Statement, other: Statement) -> bool:
    """Whether the records' tokens cannot be of one answer; a record that was cut short must match as far as it goes."""
    if one.tokens is None or other.tokens is None:
        return False
    (prompt, *choices), (other_prompt, *other_choices) = one.tokens, other.tokens
    if prompt and other_prompt and prompt != other_prompt:
        return True
    whole = one.whole and other.whole
    if whole and len(choices) != len(other_choices):
        return True
    return any(
        mine != yours and mine and yours if whole else not (mine.startswith(yours) or yours.startswith(mine))
        for mine, yours in zip(choices, other_choices, strict=False)
    )


def differ(one: Statement, other: Statement) -> bool:
    """Whether two records, neither of which encloses the other, are of two calls."""
    if one.scope == other.scope or apart(one, other):
        return True
    if not (one.by_gateway or other.by_gateway) and _gap_ns(one, other) > _APART_NS:
        return True
    return other_tokens(one, other)


def parted(
    pieces: Sequence[Sequence[Statement]], nearest_above: Callable[[], Mapping[SpanKey, SpanKey | None]] = dict
) -> Iterator[list[int]]:
    """Yield for each call the indexes of its pieces in ``pieces``, which all have the same response id.

    Linear in the number of pieces if few overlap in time, whatever their evidence.

    Args:
        pieces: groups of records that are known to be of one call, oldest call first.
        nearest_above: returns for each record the nearest of the others that encloses it; called only in doubt.
    """
    records = [record for piece in pieces for record in piece]
    if len(records) <= _COMPARED_AT_ONCE and not any(
        differ(one, other) for position, one in enumerate(records) for other in records[position + 1 :]
    ):
        yield list(range(len(pieces)))  # the usual case
        return
    groups = _Groups(pieces, nearest_above())
    # The strongest evidence first: nesting, then equal tokens, then equal times.
    for one, other in (*groups.inside(), *groups.with_equal_tokens(), *groups.at_one_time()):
        groups.unite(one, other)
    yield from groups.places()


class _Groups:
    """Pieces that are merged pairwise, as long as no two of their records contradict each other."""

    def __init__(self, pieces: Sequence[Sequence[Statement]], nearest_above: Mapping[SpanKey, SpanKey | None]) -> None:
        self._pieces = pieces
        self._above = nearest_above
        self._root = list(range(len(pieces)))
        self._members = [list(piece) for piece in pieces]
        self._places = [[place] for place in range(len(pieces))]
        self._start = [min(record.start_ns for record in piece) for piece in pieces]
        self._end = [max(record.end_ns for record in piece) for piece in pieces]

    def places(self) -> Iterator[list[int]]:
        return (sorted(places) for root, places in enumerate(self._places) if self._find(root) == root)

    def inside(self) -> list[tuple[int, int]]:
        """Return pairs in which one encloses the other; of several retries inside a call, the last gave its result."""
        place_of = {record.key: place for place, piece in enumerate(self._pieces) for record in piece}
        found = [
            (place_of[above], place)
            for place, piece in enumerate(self._pieces)
            for record in piece
            if (above := self._above.get(record.key)) in place_of
        ]
        return sorted(found, key=lambda pair: (self._say_others(*pair), -self._start[pair[1]], pair))

    def with_equal_tokens(self) -> list[tuple[int, int]]:
        by_tokens: dict[tuple[bytes, ...], list[int]] = {}
        for place, piece in enumerate(self._pieces):
            for tokens in {record.tokens for record in piece if record.tokens is not None and any(record.tokens)}:
                by_tokens.setdefault(tokens, []).append(place)
        return self._nearest_first(
            (one, other)
            for places in by_tokens.values()
            for position, one in enumerate(places)
            for other in places[position + 1 : position + 1 + _COMPARED_AT_ONCE]
        )

    def at_one_time(self) -> list[tuple[int, int]]:
        running: list[int] = []
        found: list[tuple[int, int]] = []
        for place in sorted(range(len(self._pieces)), key=lambda place: (self._start[place], place)):
            running = [one for one in running[-_COMPARED_AT_ONCE:] if self._end[one] >= self._start[place]]
            found += [(one, place) for one in running]
            running.append(place)
        return self._nearest_first(found)

    def unite(self, one: int, other: int) -> None:
        low, high = sorted((self._find(one), self._find(other)))
        if low == high or any(
            self._differ(mine, yours) for mine in self._members[low] for yours in self._members[high]
        ):
            return
        self._root[high] = low
        self._members[low] += self._members[high]
        self._places[low] += self._places[high]

    def _differ(self, one: Statement, other: Statement) -> bool:
        if self._above.get(one.key) == other.key or self._above.get(other.key) == one.key:
            # A record inside a call's own span is of that call, even if one of the two has wrong tokens.
            return apart(one, other)
        return differ(one, other)

    def _say_others(self, one: int, other: int) -> bool:
        return any(other_tokens(mine, yours) for mine in self._pieces[one] for yours in self._pieces[other])

    def _nearest_first(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        return sorted(pairs, key=lambda pair: (abs(self._start[pair[0]] - self._start[pair[1]]), pair))

    def _find(self, place: int) -> int:
        while self._root[place] != place:
            self._root[place] = self._root[self._root[place]]
            place = self._root[place]
        return place


by_start = attrgetter("start_ns", "trace_id", "span_id")
"""Sort key of evidence, by start time."""


def _gap_ns(one: Statement, other: Statement) -> int:
    return max(one.start_ns, other.start_ns) - min(one.end_ns, other.end_ns)


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other
