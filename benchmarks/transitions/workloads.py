"""Rollouts as our instrumentation and the gateway record them, of random tokens and of any size.

A rollout is a root span and agents that hold conversations, one after the other: each turn is the client's span of the
call, below it the gateway's record with the tokens, and the execution of a tool. Every call extends the one before it
token for token, as in a chat whose template keeps its history.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

from lightning_trainer.config import PolicyConfig
from lightning_trainer.types import Span, SpanEvent

POLICY = "benchmark"
AGENT = "solver"
_VOCABULARY = 32_000
_TURN_NS, _CALL_NS, _GATEWAY_NS = 100, 60, 10
_FRESH = 1 << 62
"""The first of the ids that spans are given; unlike any that a test would write by hand."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a rollout's conversations."""

    turns: int = 10
    prompt_tokens: int = 24
    sampled_tokens: int = 12
    observed_tokens: int = 12
    """Tokens that a tool's answer adds to the next prompt."""

    @property
    def spans(self) -> int:
        """An agent's span, and three for each turn except the last, which calls no tool."""
        return 3 * self.turns


def policy(**changes: object) -> PolicyConfig:
    """Return the policy that claims the agents of all workloads."""
    fields = {"name": POLICY, "agents": [AGENT], "model": "random:tiny", "max_sample_tokens": 1 << 20}
    return PolicyConfig.model_validate({**fields, **changes})


def group_of(spans: int, members: int, shape: Shape, seed: int = 0) -> list[Span]:
    """Return ``spans`` spans, divided among the attempts of one group, each with a reward of its own."""
    source, made = Random(seed), []
    for member in range(members):
        own = spans // members + (member < spans % members)
        made += rollout(f"s{seed}m{member}", f"g{seed}", own, shape, source, reward=float(member % 2))
    return made


def rollout(
    name: str, group: str, spans: int, shape: Shape, source: Random, reward: float, prompt: array | None = None
) -> list[Span]:
    """Return the spans of one attempt, exactly as many as asked for (four at least).

    Args:
        prompt: the beginning of all its conversations; None: each begins with one of its own.
    """
    recorder = _Recorder(name, group, source)
    made = list(recorder.agents(spans - 1, shape, prompt))
    return [recorder.root(len(made), reward), *made]


def chain(depth: int) -> list[Span]:
    """Return two attempts of a group: one in which each span is the child of the one before, and one with one call."""
    recorder = _Recorder("deep", "deep", Random(0))
    above, made = recorder.root_id, []
    for level in range(depth):
        made.append(recorder.plain(above, level))
        above = made[-1].span_id
    made += recorder.call(above, depth, tokens(Random(2), 24), tokens(Random(3), 12))
    other = rollout("shallow", "deep", 4, Shape(turns=1), Random(1), reward=0.0)
    return [recorder.root(depth + 1, reward=1.0), *made, *other]


def tokens(source: Random, count: int) -> array:
    """Return random token ids."""
    return array("i", (int(source.random() * _VOCABULARY) for _ in range(count)))


class _Recorder:
    """Writes the spans of one attempt."""

    def __init__(self, name: str, group: str, source: Random) -> None:
        self._source = source
        self._trace_id = f"{source.getrandbits(127) + 1:032x}"
        self._next = _FRESH + source.getrandbits(60)
        self._identity = {
            semconv.ROLLOUT_ID: f"rollout-{name}",
            semconv.ATTEMPT_ID: name,
            semconv.TASK_ID: f"task-{group}",
            semconv.GROUP_ID: group,
        }
        self._named = {**self._identity, semconv.AGENT_NAME: AGENT}
        self.root_id = self._span_id()

    def agents(self, spans: int, shape: Shape, prompt: array | None) -> Iterator[Span]:
        """Yield ``spans`` spans of conversations, one after the other; the last conversation is cut short."""
        start = 0
        while spans > 0:
            for span in self._conversation(start, shape, prompt):
                yield span
                start, spans = max(start, span.end_ns), spans - 1
                if spans == 0:
                    return

    def root(self, steps: int, reward: float) -> Span:
        attributes = {**self._identity, semconv.ROLLOUT_ROOT: True}
        scored = {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: reward}
        end = (steps + 1) * _TURN_NS
        event = SpanEvent(semconv.EVALUATION_EVENT, end, scored)
        return self._span(None, "rollout", 0, end, attributes, span_id=self.root_id, events=(event,))

    def plain(self, above: str, start: int) -> Span:
        return self._span(above, "step", start, start + _TURN_NS, dict(self._named))

    def call(self, above: str, start: int, prompt: array, response: array) -> list[Span]:
        """Return the client's span of a call and the gateway's record of it."""
        response_id = f"chatcmpl-{self._next:x}"
        said = {**self._named, semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: response_id}
        end = start + _CALL_NS
        client = self._span(above, "chat", start, end, {**said, semconv.FINISH_REASONS: ("stop",)})
        record = {
            **said,
            semconv.POLICY: POLICY,
            semconv.POLICY_VERSION: 3,
            semconv.FINISH_REASONS: ("stop",),
            semconv.INPUT_TOKENS: len(prompt),
            semconv.OUTPUT_TOKENS: len(response),
            semconv.CHOICES: 1,
            semconv.STREAM_COMPLETE: True,
            semconv.PROMPT_TOKEN_IDS: pack_token_ids(prompt),
            semconv.response_token_ids(0): pack_token_ids(response),
            semconv.response_logprobs(0): pack_logprobs([-self._source.random() for _ in response]),
        }
        scope = semconv.GATEWAY_SCOPE
        gateway = self._span(
            client.span_id, "gateway chat", start + _GATEWAY_NS, end - _GATEWAY_NS, record, scope=scope
        )
        return [client, gateway]

    def _conversation(self, start: int, shape: Shape, prompt: array | None) -> Iterator[Span]:
        agent = self._span(self.root_id, "invoke_agent", start, start + shape.turns * _TURN_NS, dict(self._named))
        yield agent
        prompt = prompt or tokens(self._source, shape.prompt_tokens)
        for turn in range(shape.turns):
            response = tokens(self._source, shape.sampled_tokens)
            yield from self.call(agent.span_id, start, prompt, response)
            if turn + 1 < shape.turns:
                tool = {**self._named, semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: "search"}
                yield self._span(agent.span_id, "execute_tool", start + _CALL_NS, start + _TURN_NS, tool)
            prompt = prompt + response + tokens(self._source, shape.observed_tokens)
            start += _TURN_NS

    def _span(
        self,
        above: str | None,
        name: str,
        start: int,
        end: int,
        attributes: dict,
        *,
        span_id: str | None = None,
        scope: str = semconv.CLIENT_SCOPE,
        events: tuple[SpanEvent, ...] = (),
    ) -> Span:
        return Span(
            self._trace_id, span_id or self._span_id(), above, name, start, end, attributes, events, scope=scope
        )

    def _span_id(self) -> str:
        self._next += 1
        return f"{self._next:016x}"
