"""What led to what across the agents of an attempt: the edges of causal credit.

The span tree says what happened inside what; time says what happened after what, but only if nothing ran alongside. The
things directly inside one span are sorted into stages: a new stage begins once everything before it has ended. The last
calls of a stage led to everything in the next, and what led to the span itself led to everything in its first stage. So
an agent's call leads to the sub-agents that it starts, parallel sub-agents to the call that reads their answers, and
nothing leads from one parallel branch to another. Inside a stage order in time says nothing, so the call that another
one follows (``Transition.parent_id``) is the only one that led to it. The same holds if the call that it follows is
among the last of the stage before, since a branch then continues by itself.

The order in which spans arrive has no effect. Time is linear in spans and edges; a stage of ``m`` branches after one of
``n`` has ``m * n`` edges. A missing parent, or a cycle, ends the chain: such spans lie in the attempt itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lightning_trainer.types import Call, Span, Trajectory, Transition

_ATTEMPT = ""
"""Stands for the attempt: whatever has no span above it lies directly in the attempt."""


def span_parents(spans: Iterable[Span]) -> dict[str, str]:
    """Return the parent of every span that has one, by span id."""
    return {span.span_id: span.parent_span_id for span in spans if span.parent_span_id is not None}


def with_causes(
    trajectories: Sequence[Trajectory], calls: Iterable[Call], parents: Mapping[str, str]
) -> tuple[Trajectory, ...]:
    """Return the trajectories with ``Transition.causes`` filled in.

    Args:
        trajectories: of any number of attempts.
        calls: all that were recorded, also of agents that are not trained: they show what ran alongside what.
        parents: ``span_parents`` of everything that was recorded; spans that are missing from it have no parent.
    """
    steps = {step.transition_id: step for trajectory in trajectories for step in trajectory.transitions}
    by_attempt: dict[str, list[Call]] = {}
    for call in sorted(calls, key=lambda call: call.call_id):
        if call.attempt_id is not None:
            by_attempt.setdefault(call.attempt_id, []).append(call)
    causes: dict[str, tuple[str, ...]] = {}
    for attempt_id in {trajectory.attempt.attempt_id for trajectory in trajectories}:
        causes.update(_Causes(by_attempt.get(attempt_id, []), parents, steps).found)
    return tuple(
        replace(
            trajectory,
            transitions=tuple(
                replace(step, causes=causes.get(step.transition_id, ())) for step in trajectory.transitions
            ),
        )
        for trajectory in trajectories
    )


@dataclass(frozen=True, slots=True)
class _Frontier:
    """The calls that lead to whatever comes next."""

    call_ids: tuple[str, ...] = ()
    end_ns: int = 0
    """When the last of them had ended."""
    known: frozenset[str] = frozenset()
    """The same calls as a set, to look one up among many."""


@dataclass(slots=True)
class _Visit:
    """A span that is being walked through, stage by stage and item by item."""

    stages: Sequence[Sequence["Call | str"]]
    before: _Frontier
    """What led to the present stage; once the visit is over, what the span ends with."""
    ends: list[_Frontier] = field(default_factory=list)
    """What each item of the present stage that was visited ends with."""
    _stage: int = field(default=0, init=False)
    _item: int = field(default=0, init=False)

    @property
    def over(self) -> bool:
        return self._stage == len(self.stages)

    @property
    def stage_over(self) -> bool:
        return self._item == len(self.stages[self._stage])

    def next_item(self) -> "Call | str":
        """Return the next item of the present stage: a call, or the id of a span to be visited."""
        item = self.stages[self._stage][self._item]
        self._item += 1
        return item

    def next_stage(self, before: _Frontier) -> None:
        """Move on to the stage that ``before`` leads to."""
        self.before = before
        self.ends = []
        self._stage += 1
        self._item = 0


class _Causes:
    """Walks one attempt from the outside in, in order of time; by loops, as chains may exceed recursion limits."""

    def __init__(self, calls: Sequence[Call], parents: Mapping[str, str], steps: Mapping[str, Transition]) -> None:
        self.found: dict[str, tuple[str, ...]] = {}
        self._steps = steps
        self._followed: set[str] = set()
        self._ends = {call.call_id: call.end_ns for call in calls}
        self._inside: dict[str, list[Call | str]] = {}
        self._hulls: dict[str, tuple[int, int]] = {}
        self._nest(calls, parents)
        self._measure()
        if _ATTEMPT in self._inside:
            self._walk()

    def _nest(self, calls: Sequence[Call], parents: Mapping[str, str]) -> None:
        """Put every call, and every span above one, into what it lies directly in."""
        for call in calls:
            span_id, above = call.span_id, parents.get(call.span_id, call.parent_span_id)
            known = span_id in self._inside
            self._inside.setdefault(span_id, []).append(call)
            chain = {span_id}
            while not known:
                # A cycle is cut where it closes.
                parent = above if above is not None and above not in chain else _ATTEMPT
                known = parent in self._inside
                self._inside.setdefault(parent, []).append(span_id)
                if parent == _ATTEMPT:
                    break
                chain.add(parent)
                span_id, above = parent, parents.get(parent)

    def _measure(self) -> None:
        """Find when each span's content began and ended, the innermost spans first."""
        for span_id in self._inside_out():
            hulls = [self._hull(item) for item in self._inside[span_id]]
            self._hulls[span_id] = (min(start for start, _ in hulls), max(end for _, end in hulls))

    def _walk(self) -> None:
        """Meet every call, depth first; the stack holds the spans from the attempt down to the present one."""
        visits = [self._visit(_ATTEMPT, _Frontier())]
        while visits:
            visit = visits[-1]
            if visit.over:
                visits.pop()
                if visits:
                    visits[-1].ends.append(visit.before)
            elif visit.stage_over:
                visit.next_stage(self._merged(visit.ends, visit.before))
            elif isinstance(item := visit.next_item(), str):
                visits.append(self._visit(item, visit.before))
            else:
                visit.ends.append(self._meet(item, visit.before))

    def _visit(self, span_id: str, before: _Frontier) -> _Visit:
        return _Visit(self._stages(span_id), before)

    def _meet(self, call: Call, before: _Frontier) -> _Frontier:
        """Note what led to a call; return what leads on from there."""
        step = self._steps.get(call.call_id)
        if step is None:
            return before  # not trained: what led to it leads on
        parent = step.parent_id
        # Only what was met before can have led here, so there is no cycle even if clocks contradict tokens.
        if parent in self.found and (parent in before.known or self._steps[parent].start_ns >= before.end_ns):
            causes: tuple[str, ...] = (parent,)
        else:
            causes = before.call_ids
        self.found[call.call_id] = causes
        self._followed.update(causes)
        return _Frontier((call.call_id,), call.end_ns, frozenset((call.call_id,)))

    def _merged(self, ends: Sequence[_Frontier], before: _Frontier) -> _Frontier:
        """Return what a stage ends with: the last calls of its branches, without those that a later one followed."""
        new = [frontier for frontier in ends if frontier is not before]
        if len(new) < 2:
            return new[0] if new else before
        call_ids = dict.fromkeys(name for frontier in new for name in frontier.call_ids if name not in self._followed)
        end_ns = max((self._ends[name] for name in call_ids), default=before.end_ns)
        return _Frontier(tuple(sorted(call_ids)), end_ns, frozenset(call_ids))

    def _stages(self, span_id: str) -> list[list[Call | str]]:
        """Return what lies directly in a span, in order of time; items that ran alongside each other are one stage."""
        stages: list[list[Call | str]] = []
        until, before = 0, None
        for item in sorted(self._inside[span_id], key=lambda item: (*self._hull(item), _name(item))):
            hull = self._hull(item)
            if stages and (hull[0] < until or hull == before):
                stages[-1].append(item)
            else:
                stages.append([item])
            until, before = max(until, hull[1]), hull
        return stages

    def _hull(self, item: Call | str) -> tuple[int, int]:
        return self._hulls[item] if isinstance(item, str) else (item.start_ns, item.end_ns)

    def _inside_out(self) -> list[str]:
        """Return the spans that are reached from the attempt, each after all that lie in it."""
        order = [_ATTEMPT] if _ATTEMPT in self._inside else []
        for span_id in order:  # grows while it is read
            order += [item for item in self._inside[span_id] if isinstance(item, str)]
        return order[::-1]


def _name(item: Call | str) -> str:
    return item if isinstance(item, str) else item.call_id
