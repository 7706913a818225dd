"""What is recorded: spans, attempts, evaluations and model calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.token_ids import Ids

AttributeValue: TypeAlias = (
    str | bool | int | float | bytes | tuple[str, ...] | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]
)


class SpanStatus(StrEnum):
    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    time_ns: int
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Span:
    """One timed operation, as OpenTelemetry defines it. Ids are lower-case hex (32 and 16 digits)."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    events: tuple[SpanEvent, ...] = ()
    status: SpanStatus = SpanStatus.UNSET
    status_message: str = ""
    scope: str = ""
    """Name of the instrumentation scope that made it: says which dialect to read it in."""
    resource: Mapping[str, AttributeValue] = field(default_factory=dict)
    received: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The OTLP bytes that it was read from, stored as they are; ``dataclasses.replace`` leaves them behind."""


class SpanSink(Protocol):
    """Where spans are made durable; the store is one. Passed in, never global."""

    async def append(self, spans: Sequence[Span]) -> int:
        """Commit spans and return how many were new; a span with a known (trace id, span id) changes nothing.

        Returns only after the commit: a client that is told that a span was accepted may forget it.
        """
        ...


class AttemptState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """Its code returned. Says nothing about the reward."""
    FAILED = "failed"
    """Its code raised. A failed attempt is data."""


class RolloutMode(StrEnum):
    TRAIN = "train"
    EVALUATE = "evaluate"
    """Recorded, never trained."""
    BASELINE = "baseline"
    """Recorded, never trained: its reward is what the attempts of its group are compared with (ReMax)."""
    RETRIED = "retried"
    """It failed, and another attempt was made in its place; recorded, never trained."""
    SHADOW = "shadow"
    """What a candidate answered alongside the live version (``[policy.canary] shadow``); recorded, never trained."""
    DROPPED = "dropped"
    """A person took it out (``lightning-trainer drop``), whatever its mode was; recorded, never trained."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a rollout (a requested execution of a task)."""

    attempt_id: str
    rollout_id: str
    task_id: str
    group_id: str
    """Attempts with one group id are compared with each other."""
    mode: RolloutMode = RolloutMode.TRAIN
    state: AttemptState = AttemptState.RUNNING
    started_ns: int = 0
    ended_ns: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One reward observation: a ``gen_ai.evaluation.result``. ``value`` None: it was tried and gave no number."""

    name: str
    value: float | None
    rollout_id: str | None
    attempt_id: str | None
    span_id: str | None
    """The span that it evaluates, where it names one."""
    time_ns: int
    explanation: str | None = None
    agent: str | None = None
    """The agent that it evaluates, where it is about one agent of the attempt and not about all of it."""
    response_id: str | None = None
    """The response that it evaluates, where it names one."""
    trace_id: str | None = None
    """Of the span that it evaluates: span ids are unique in a trace only."""
    source: str | None = None
    """Who gave it, where that is known: ``judge helpful (rubric, gpt-5-mini)``."""


class Fidelity(StrEnum):
    """How faithfully the tokens of a call are known; it decides what the call may be used for."""

    EXACT = "exact"
    """The engine's own ids of prompt and response. May be trained with any algorithm, reinforcement learning too."""
    VERIFIED = "verified"
    """Ids made from the text by the policy's tokenizer and chat template, and checked against something that the
    engine said (its token counts, or its scores of the ids). No behavior log-probabilities come with them."""
    TEXT_ONLY = "text_only"
    """What was said is known, and no ids. Never a sample of reinforcement learning: other ids may spell the same text,
    and what the policy did not sample has no log-probability under it."""


@dataclass(frozen=True, slots=True)
class Media:
    """A part of a prompt that is not text, by reference: what it is stays where it was."""

    modality: str
    """``image``, ``audio``, ``video`` ..., or the part's own type where it says no more."""
    uri: str
    """As the agent gave it; what traveled inside of the message is named by its hash, ``sha256:...``."""
    mime_type: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One choice of one LLM call, with the tokens that the engine saw and sampled where they are known."""

    call_id: str
    """``{span_id}/{choice}`` of the span that recorded the tokens; ``{span_id}.{trace_id}/{choice}`` where a call in
    another trace has the same span id."""
    trace_id: str
    span_id: str
    parent_span_id: str | None
    response_id: str | None
    agent: str | None
    rollout_id: str | None
    attempt_id: str | None
    policy: str | None
    policy_version: int | None
    prompt_ids: Ids
    response_ids: Ids
    behavior_logprobs: tuple[float, ...] | None
    """One per response id, or None where the engine gave none."""
    finish_reason: str | None
    complete: bool
    """False when a stream ended early."""
    start_ns: int
    end_ns: int
    fidelity: Fidelity
    """Set by the code that makes the call from what was recorded; it has no default, so that it cannot be forgotten."""
    temperature: float = 1.0
    """As requested; 1.0 where the request named none."""
    media: tuple[Media, ...] = ()
    """What of the prompt is not text, in order; its tokens are placeholders in ``prompt_ids``."""
    shaping: Shaping | None = None
    """What was done to single logits; None where the request asked for none of it."""
    support: Support | None = None
    """What the response's tokens were drawn from; None where each could have been any token of the vocabulary."""
    sampling_unknown: str | None = None
    """Why it cannot be said what they were drawn from, as a sentence without its full stop; None where it can."""
    state: str | None = None
    """The state of the environment that the agent says it was made in (``lt.state``); None: it says nothing."""
    server: str | None = None
    """``host:port`` of what answered, by the client's record of it; None where the gateway recorded it."""
    model: str | None = None
    """As that server calls it; None where the gateway recorded it."""
    routed_experts: RoutedExperts | None = None
    """Which experts its prompt and response went through; None where the engine does not tell."""
