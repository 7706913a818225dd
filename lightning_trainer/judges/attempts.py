"""Attempts from a judge's point of view: task, messages, and tool runs, read from stored spans of any age."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.reading import Reading, read_spans
from lightning_trainer.retokenize.texts import Words, words_of
from lightning_trainer.samples.rewards.reward_table import RewardTable, given_rewards, read_rewards
from lightning_trainer.samples.transitions.deduplication import deduplicate
from lightning_trainer.types import Attempt, Call, Evaluation, Span


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call."""

    call: Call
    prompt: tuple[Message, ...]
    answer: Message | None
    """None if its text was not recorded."""
    tools: tuple[str, ...] = ()
    """Names of the available tools."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool that ran after the last model call, so that no prompt contains its result."""

    name: str
    arguments: str
    result: str


@dataclass(frozen=True)
class JudgedAttempt:
    """One attempt, with all agents' calls."""

    attempt: Attempt
    asked: str | None
    """The task as given when the rollout was started, as JSON text; None if it was not given."""
    turns: tuple[Turn, ...]
    """By start time."""
    last_tools: tuple[ToolRun, ...] = ()
    rewards: Mapping[str, float] | None = None
    """The attempt's own rewards, by name."""
    explanations: tuple[str, ...] = ()
    """Explanations of the attempt's rewards, by time, each preceded by the name of its reward."""
    settled: bool = False
    """Whether something other than the judge gave the reward of the judge's name, such as a person who corrects it.
    That reward stays: the attempt only serves for others to be compared with."""
    judged_ns: int | None = None
    """When the judge gave its newest number for any part of the attempt; None: never."""

    @cached_property
    def digest(self) -> str:
        """Return a digest that is equal for attempts with the same contents, whatever their ids."""
        told: list[Any] = [self.asked, self.attempt.state.value, self.attempt.error]
        told += [[turn.call.agent, turn.prompt, turn.answer] for turn in self.turns]
        told += [[run.name, run.arguments, run.result] for run in self.last_tools]
        return hashlib.blake2b(json.dumps(told, default=str).encode(), digest_size=16).hexdigest()

    @property
    def unreadable(self) -> str | None:
        """Return why there is nothing that a model could read; None if there is something."""
        if any(turn.answer is not None for turn in self.turns):
            return None
        return "no model call of it was recorded" if not self.turns else "the words of its calls were not recorded"

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the names of the agents, in order of their first call."""
        return tuple(dict.fromkeys(turn.call.agent for turn in self.turns if turn.call.agent is not None))


class JudgedSpans:
    """The spans of some attempts, read once: the attempts for judging, and their existing rewards."""

    def __init__(self, spans: Sequence[Span], attempts: Iterable[Attempt]) -> None:
        self._attempts = {attempt.attempt_id: attempt for attempt in attempts}
        self._reading: Reading = read_spans(spans)
        self._calls = deduplicate(self._reading.calls)
        words = words_of(spans)
        asked = _by_attempt(spans, semconv.ROLLOUT_INPUT)
        turns: dict[str, list[Turn]] = {attempt_id: [] for attempt_id in self._attempts}
        for call in sorted(self._calls.kept, key=attrgetter("start_ns", "call_id")):
            if call.attempt_id in turns:
                turns[call.attempt_id].append(_turn(call, words.get(call.call_id)))
        last_tools = _last_tools(spans, turns)
        given = given_rewards(self._reading.evaluations, self._calls, self._attempts)
        explained: dict[str | None, list[str]] = {}
        for evaluation in self._reading.evaluations:
            if evaluation.explanation:
                explained.setdefault(evaluation.attempt_id, []).append(f"{evaluation.name}: {evaluation.explanation}")
        self.attempts = [
            JudgedAttempt(
                attempt=attempt,
                asked=asked.get(attempt_id),
                turns=tuple(turns[attempt_id]),
                last_tools=tuple(last_tools.get(attempt_id, ())),
                rewards=given.get(attempt_id, {}),
                explanations=tuple(explained.get(attempt_id, ())),
            )
            for attempt_id, attempt in self._attempts.items()
        ]

    def scored(self, name: str, *, by_others: bool = False) -> set[str]:
        """Return the attempts that have a reward of that name, for any part of them.

        Args:
            by_others: only attempts with a reward that is not a verdict of the judge of that name.
        """
        evaluations = self._reading.evaluations
        table = self._given(name, [one for one in evaluations if one.judge != name] if by_others else evaluations)
        attempt_of = {call.call_id: call.attempt_id for call in self._calls.kept}
        of_calls = {attempt_of[call_id] for call_id in table.of_calls} - {None}
        return {*table.of_attempts, *(attempt_id for attempt_id, _ in table.of_agents), *filter(None, of_calls)}

    def judged_ns(self, name: str) -> dict[str | None, int]:
        """Return when the judge of that name gave each attempt its newest number."""
        evaluations = self._reading.evaluations  # by time
        return {one.attempt_id: one.time_ns for one in evaluations if one.judge == name and one.value is not None}

    def _given(self, name: str, evaluations: Iterable[Evaluation]) -> RewardTable:
        return read_rewards(evaluations, self._calls.kept, self._attempts, name, self._calls.repeated)


def _turn(call: Call, words: Words | None) -> Turn:
    if words is None or words.answer is None:
        return Turn(call, (), None)
    names = (tool.get("name") for tool in words.tools)
    return Turn(call, words.prompt, words.answer, tuple(name for name in names if isinstance(name, str)))


def _by_attempt(spans: Iterable[Span], name: str) -> dict[str, str]:
    """Return an attribute's text for each attempt: its root's, else that of an ``lt.rollout`` inside it."""
    found: dict[str, str] = {}
    for span in sorted(spans, key=lambda span: span.attributes.get(semconv.ROLLOUT_ROOT) is not True):
        value, attempt_id = span.attributes.get(name), span.attributes.get(semconv.ATTEMPT_ID)
        if isinstance(value, str) and isinstance(attempt_id, str):
            found.setdefault(attempt_id, value)
    return found


def _last_tools(spans: Iterable[Span], turns: Mapping[str, Sequence[Turn]]) -> dict[str, list[ToolRun]]:
    ended = {attempt_id: max((turn.call.end_ns for turn in own), default=0) for attempt_id, own in turns.items()}
    found: dict[str, list[ToolRun]] = {}
    for span in sorted(spans, key=attrgetter("start_ns", "span_id")):
        attempt_id = span.attributes.get(semconv.ATTEMPT_ID)
        if not isinstance(attempt_id, str) or span.start_ns < ended.get(attempt_id, span.start_ns + 1):
            continue
        if (name := dialect_of(span).tool(span)) is not None:
            said = (span.attributes.get(key) for key in (semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT))
            arguments, result = (text if isinstance(text, str) else "" for text in said)
            found.setdefault(attempt_id, []).append(ToolRun(name, arguments, result))
    return found
