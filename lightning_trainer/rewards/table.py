"""Evaluations to rewards: of attempts, and of single calls.

What an evaluation scores, first match wins:

1. a call, when it names the call (``span id/choice``), the span that recorded the call, or the client's chat span
   above that one: a span with exactly one recorded response below it (one with several is an agent or a workflow);
2. the attempt that it names;
3. the latest attempt of the rollout that it names: an outcome of the rollout is that of its last try.

Of several with the policy's reward name for one target the last number by time counts; at the same nanosecond the
larger, so neither re-delivery nor order of arrival has an effect. None, NaN and infinity are missing, never zero
(promise 6): they do not undo a number that was given before.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.types import Attempt, Call, Evaluation


@dataclass(frozen=True, slots=True)
class RewardTable:
    """Whatever has no entry was not scored."""

    of_attempts: Mapping[str, float]
    """By attempt id: terminal rewards."""
    of_calls: Mapping[str, float]
    """By call id: rewards of single steps."""
    problems: tuple[str, ...]
    """One sentence each on evaluations that could not be used."""


def read_rewards(
    evaluations: Iterable[Evaluation],
    calls: Sequence[Call],
    attempts: Mapping[str, Attempt],
    name: str,
    repeated: Iterable[tuple[Call, Call]] = (),
) -> RewardTable:
    """Return who was given which reward.

    Args:
        evaluations: all of them; only those called ``name`` are rewards.
        calls: one record for each response, of all agents.
        attempts: by id; evaluations of other attempts are of no concern here.
        name: the policy's ``reward`` setting.
        repeated: pairs of a left-out record and the call that is kept for it, so that naming either means the call.
    """
    targets = _Targets(calls, attempts, repeated)
    best: dict[tuple[str, str], tuple[int, float]] = {}
    not_numbers: set[str] = set()
    ambiguous: set[str] = set()
    for evaluation in set(evaluations):
        if evaluation.name != name:
            continue
        target = targets.find(evaluation)
        if target is None:
            continue
        if target[0] == _AMBIGUOUS:
            ambiguous.add(target[1])
        elif evaluation.value is None or not math.isfinite(evaluation.value):
            not_numbers.add(f"{target[0]} {target[1]}: evaluation {name!r} gave no number ({evaluation.value})")
        else:
            observed = (evaluation.time_ns, float(evaluation.value))
            best[target] = max(best.get(target, observed), observed)
    problems = [f"{text} and counts as missing" for text in sorted(not_numbers)]
    problems += [
        f"span {span_id}: {name} does not say which of the response's choices it scores, so it scores none; name one "
        f"as {span_id}/0"
        for span_id in sorted(ambiguous)
    ]
    return RewardTable(
        {target_id: value for (kind, target_id), (_, value) in best.items() if kind == _ATTEMPT},
        {target_id: value for (kind, target_id), (_, value) in best.items() if kind == _CALL},
        tuple(problems),
    )


_ATTEMPT, _CALL, _AMBIGUOUS = "attempt", "call", "ambiguous"


class _Targets:
    """Finds what an evaluation scores in constant time."""

    def __init__(
        self, calls: Sequence[Call], attempts: Mapping[str, Attempt], repeated: Iterable[tuple[Call, Call]]
    ) -> None:
        self._attempts = attempts
        self._call_ids: dict[str, str] = {call.call_id: call.call_id for call in calls}
        self._by_span: dict[str, set[str]] = {}
        below: dict[str, set[str]] = {}
        for record, call in [*((call, call) for call in calls), *repeated]:
            self._call_ids[record.call_id] = call.call_id
            self._by_span.setdefault(record.span_id, set()).add(call.call_id)
            # A record without a policy version is the client's own chat span: what is above it is an agent.
            if record.parent_span_id is not None and record.policy_version is not None and record.complete:
                below.setdefault(record.parent_span_id, set()).add(call.span_id)
        self._chat_spans = {
            parent: next(iter(spans)) for parent, spans in below.items() if len(spans) == 1 and parent not in spans
        }
        self._latest: dict[str, str] = {}
        for attempt in sorted(attempts.values(), key=lambda a: (a.started_ns, a.attempt_id)):
            self._latest[attempt.rollout_id] = attempt.attempt_id

    def find(self, evaluation: Evaluation) -> tuple[str, str] | None:
        """Return the kind of target and its id, or None for something that is not here."""
        span_id = evaluation.span_id
        if span_id is not None:
            if span_id in self._call_ids:
                return (_CALL, self._call_ids[span_id])
            choices = self._by_span.get(span_id) or self._by_span.get(self._chat_spans.get(span_id, ""))
            if choices is not None:
                return (_CALL, next(iter(choices))) if len(choices) == 1 else (_AMBIGUOUS, span_id)
        if evaluation.attempt_id is not None:
            return (_ATTEMPT, evaluation.attempt_id) if evaluation.attempt_id in self._attempts else None
        if evaluation.rollout_id is not None and evaluation.rollout_id in self._latest:
            return (_ATTEMPT, self._latest[evaluation.rollout_id])
        return None
