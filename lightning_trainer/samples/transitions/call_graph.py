"""What follows what among an agent's calls in one attempt, and in which order: the one place that decides.

Credit schemes, the critic's formulas and the rows of the estimators all read the edges (``Transition.parent_id``) and
the order (that of ``Trajectory.transitions``) that are made here. All calls count, whether they can be trained or not:
a call that is left out of training still happened, and what came after it still says something about what came before.

Calls that are not steps:

* a call that was given up: the agent never had the whole answer, and asked the same again (or had none of the answer);
* a call that is known by its words alone and overlaps one whose tokens are known: another record of the same call.

What follows what (promise 4):

1. A call follows the one whose tokens it extends.
2. Any other call (a new prompt, a re-rendered history, a state that comes back) follows the one before it in time, but
   only if no two of the agent's calls overlapped. If any did, the order in which parallel branches happened to run says
   nothing about what caused what, so such a call starts a branch of its own: credit that might leak is not passed on.
   The same holds if the clock contradicts the tokens. A call whose tokens are unknown may be the one that a later call
   extends, so calls after it in time follow it.
3. A retry is an alternative to the first try: it follows whatever that one follows. The same prompt again is not in
   itself a retry, since an action can leave a state as it was. It is one if nothing different came in between and the
   agent shows that it did not act on an answer: a later call extends one of the tries, and so contains none of the
   others.

The order is that of time, except that no call comes before the one that it follows.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, lt

from lightning_trainer.samples.transitions.token_tree import token_parents
from lightning_trainer.types import Call

_by_time = attrgetter("start_ns", "call_id")


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The steps of one agent in one attempt."""

    calls: tuple[Call, ...]
    """In order."""
    parents: tuple[int | None, ...]
    """For each call, the place of the one that it follows, which comes before it."""
    extends: tuple[int | None, ...]
    """For each call that can be trained, the place of the trainable call that its prompt begins with in full."""


def call_graph(calls: Iterable[Call], trainable: Container[str] | None = None) -> CallGraph:
    """Return the steps of one agent in one attempt.

    Args:
        calls: all that were recorded of the agent in the attempt, in any order.
        trainable: ids of those that can be trained (all, when absent). Of several calls with the very same tokens, a
            call that can be trained extends one that can be, too, and any other call one of the others, if there is
            one.
    """
    steps = _steps(sorted(calls, key=_by_time))
    by_tokens = extends = _extended(steps, range(len(steps)), trainable)
    if trainable is not None:
        extends = _extended(steps, [place for place, call in enumerate(steps) if call.call_id in trainable])
    parents = list(by_tokens)
    if _one_at_a_time(steps, by_tokens):
        _fill_in_by_time(steps, parents)
    order = _parents_first(parents)
    place = {index: number for number, index in enumerate(order)}
    return CallGraph(
        calls=tuple(steps[index] for index in order),
        parents=tuple(_placed(parents[index], place) for index in order),
        extends=tuple(_placed(extends[index], place) for index in order),
    )


def _placed(index: int | None, place: dict[int, int]) -> int | None:
    return None if index is None else place[index]


def _steps(calls: Sequence[Call]) -> list[Call]:
    """Return those of one agent's calls that are steps; both are in order of time."""
    doubtful = [place for place, call in enumerate(calls) if not call.complete or not _has_tokens(call)]
    if not doubtful:
        return list(calls)
    known = [call for call in calls if _has_tokens(call)]
    starts = [call.start_ns for call in known]
    latest_ends = list(accumulate((call.end_ns for call in known), max))

    def is_another_record(call: Call) -> bool:
        before = bisect_left(starts, call.end_ns)
        return not _has_tokens(call) and before > 0 and latest_ends[before - 1] > call.start_ns

    out = {place for place in doubtful if _given_up(calls, place) or is_another_record(calls[place])}
    return [call for place, call in enumerate(calls) if place not in out]


def _given_up(calls: Sequence[Call], place: int) -> bool:
    call = calls[place]
    if call.complete:
        return False
    if not call.response_ids:
        return True
    for later in calls[place + 1 :]:
        if _same_prompt(call, later):
            return True
        if later.start_ns >= call.end_ns:
            return False
    return False


def _has_tokens(call: Call) -> bool:
    return bool(call.prompt_ids and call.response_ids)


def _same_prompt(one: Call, other: Call) -> bool:
    return bool(one.prompt_ids) and one.prompt_ids == other.prompt_ids and one.media == other.media


def _extended(steps: Sequence[Call], among: Iterable[int], trainable: Container[str] | None = None) -> list[int | None]:
    places = [place for place in among if _has_tokens(steps[place])]
    owners = None if trainable is None else [steps[place].call_id in trainable for place in places]
    extends: list[int | None] = [None] * len(steps)
    parents = token_parents([steps[place] for place in places], owners)
    for place, parent in zip(places, parents, strict=True):
        extends[place] = None if parent is None else places[parent]
    return extends


def _one_at_a_time(steps: Sequence[Call], extends: Sequence[int | None]) -> bool:
    if len(set(map(attrgetter("span_id"), steps))) < len(steps):
        return False  # the choices of one response share its span
    starts, ends = map(attrgetter("start_ns"), steps), map(attrgetter("end_ns"), steps)
    next(starts, None)
    if any(map(lt, starts, ends)):
        return False
    return all(parent is None or parent < index for index, parent in enumerate(extends))


def _fill_in_by_time(steps: Sequence[Call], parents: list[int | None]) -> None:
    """Apply rules 2 and 3 to calls that ran one after the other."""
    gone_on_with = set(parents)
    unknown: int | None = None
    begins = 0  # where the present call's run of equal prompts begins
    alternatives = False
    for index, call in enumerate(steps):
        parent = parents[index]
        if index and not _same_prompt(call, steps[index - 1]):
            begins = index
        if begins == index:
            alternatives = _gone_on_with(steps, index, gone_on_with)
        if parent is None and index:
            parents[index] = parents[begins] if begins < index and alternatives else index - 1
        elif parent is not None and unknown is not None:
            parents[index] = max(parent, unknown)
        if not _has_tokens(call):
            unknown = index


def _gone_on_with(steps: Sequence[Call], begins: int, extended: Container[int | None]) -> bool:
    """Whether some call extends one of the run of calls with the same prompt that begins here."""
    index = begins
    while index < len(steps) and _same_prompt(steps[index], steps[begins]):
        if index in extended:
            return True
        index += 1
    return False


def _parents_first(parents: Sequence[int | None]) -> Sequence[int]:
    """Return the indices in order, but none before its parent; by a loop, as chains may exceed recursion limits."""
    if all(parent is None or parent < index for index, parent in enumerate(parents)):
        return range(len(parents))
    order: dict[int, None] = {}
    for index in range(len(parents)):
        chain: list[int] = []
        above: int | None = index
        while above is not None and above not in order:
            chain.append(above)
            above = parents[above]
        order.update(dict.fromkeys(reversed(chain)))
    return list(order)
