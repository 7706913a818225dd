"""What an evaluation scores; the rule is in ``reward_table.py``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lightning_trainer.types import Attempt, Call, Evaluation


class Scope(StrEnum):
    """The kind of thing that an evaluation scores."""

    CALL = "call"
    AGENT = "agent"
    """One agent in one attempt: its trajectory."""
    ATTEMPT = "attempt"
    AMBIGUOUS = "ambiguous"
    """A response with several choices, none of which is named."""
    SHARED = "shared"
    """A response id, or a span's id, that several calls have."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """What one evaluation scores."""

    scope: Scope
    name: str
    """The id of the call or attempt; the span's id if ambiguous; the id that several calls share."""
    agent: str | None = None
    """Set only for the scope ``AGENT``."""

    def __str__(self) -> str:
        return (
            f"agent {self.agent} in attempt {self.name}" if self.scope is Scope.AGENT else f"{self.scope} {self.name}"
        )


class Targets:
    """Finds what an evaluation scores in constant time."""

    def __init__(
        self, calls: Sequence[Call], attempts: Mapping[str, Attempt], repeated: Iterable[tuple[Call, Call]]
    ) -> None:
        self._attempts = attempts
        self._call_ids: dict[str, str] = {call.call_id: call.call_id for call in calls}
        self._attempt_of = {call.call_id: call.attempt_id for call in calls}
        self._span_of = {call.call_id: (call.trace_id, call.span_id) for call in calls}
        # Span ids are unique only within a trace; an evaluation that names no trace means any.
        self._by_span: dict[tuple[str | None, str], set[str]] = {}
        self._by_response: dict[str, set[str]] = {}
        below: dict[tuple[str | None, str], set[str]] = {}
        for record, call in [*((call, call) for call in calls), *repeated]:
            self._call_ids[record.call_id] = call.call_id
            if record.response_id is not None:
                self._by_response.setdefault(record.response_id, set()).add(call.call_id)
            for trace_id in (record.trace_id, None):
                self._by_span.setdefault((trace_id, record.span_id), set()).add(call.call_id)
                # The client's own chat span, which names its server, or has no policy version, is below an agent's.
                of_gateway = record.policy_version is not None and record.server is None
                if record.parent_span_id is not None and of_gateway and record.complete:
                    below.setdefault((trace_id, record.parent_span_id), set()).add(call.call_id)
        self._chat_spans = {
            parent: call_ids for parent, call_ids in below.items() if len({self._span_of[one] for one in call_ids}) == 1
        }
        self._latest: dict[str, str] = {}
        for attempt in sorted(attempts.values(), key=lambda a: (a.started_ns, a.attempt_id)):
            self._latest[attempt.rollout_id] = attempt.attempt_id

    def find(self, evaluation: Evaluation) -> Target | None:
        """Return the target; None if it is not among these calls and attempts."""
        span_id, response_id = evaluation.span_id, evaluation.response_id
        if span_id is not None:
            if span_id in self._call_ids:
                return Target(Scope.CALL, self._call_ids[span_id])
            key = (evaluation.trace_id, span_id)
            choices = self._by_span.get(key) or self._chat_spans.get(key)
            if choices is not None:
                return self._choice(choices, f"span {span_id}")
        if response_id is not None:
            choices = self._by_response.get(response_id, set())
            if evaluation.attempt_id is not None and len(choices) > 1:
                choices = {one for one in choices if self._attempt_of[one] in (None, evaluation.attempt_id)}
            return self._choice(choices, f"response {response_id}") if choices else None
        attempt_id = self._attempt(evaluation)
        if attempt_id is None:
            return None
        if evaluation.agent is not None:
            return Target(Scope.AGENT, attempt_id, evaluation.agent)
        return Target(Scope.ATTEMPT, attempt_id)

    def _attempt(self, evaluation: Evaluation) -> str | None:
        if evaluation.attempt_id is not None:
            attempt = self._attempts.get(evaluation.attempt_id)
            # Attempts of two rollouts can have the same id if their callers number them; only one of them is known.
            if attempt is None or evaluation.rollout_id not in (None, attempt.rollout_id):
                return None
            return evaluation.attempt_id
        return None if evaluation.rollout_id is None else self._latest.get(evaluation.rollout_id)

    def _choice(self, choices: set[str], named: str) -> Target:
        if len(choices) == 1:
            return Target(Scope.CALL, next(iter(choices)))
        spans = {self._span_of[call_id] for call_id in choices}
        return Target(Scope.SHARED, named) if len(spans) > 1 else Target(Scope.AMBIGUOUS, next(iter(spans))[1])
