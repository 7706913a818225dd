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

_CUT_SHORT = ("length", "max_tokens", "model_context_window_exceeded", "abort")


class SpanStatus(StrEnum):
    """The status of a span, as OpenTelemetry defines it."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A named moment within a span."""

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
    """Name of the instrumentation scope that made the span; tells which dialect to read it in."""
    resource: Mapping[str, AttributeValue] = field(default_factory=dict)
    received: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The OTLP bytes that the span was read from, stored unchanged; ``dataclasses.replace`` drops them."""


class SpanSink(Protocol):
    """Where spans are made durable; the store is one. Passed in, never global."""

    async def append(self, spans: Sequence[Span]) -> int:
        """Commit spans and return how many were new; a span with a known (trace id, span id) changes nothing.

        Returns only after the commit: a client that learns that its span was accepted may forget it.
        """
        ...


class AttemptState(StrEnum):
    """Whether an attempt has ended, and how."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """Its code returned, which says nothing about the reward."""
    FAILED = "failed"
    """Its code raised an exception. A failed attempt is data too."""


class RolloutMode(StrEnum):
    """What an attempt is for; only ``TRAIN`` is ever trained."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    """Recorded, never trained."""
    BASELINE = "baseline"
    """Recorded, never trained: its reward is what the attempts of its group are compared with (ReMax)."""
    RECORD = "record"
    """Recorded for a dataset: ``build`` takes it, a training step never does."""
    RETRIED = "retried"
    """It failed, and another attempt replaced it; recorded, never trained."""
    SHADOW = "shadow"
    """What a candidate answered alongside the live version (``[policy.canary] shadow``); recorded, never trained."""
    DROPPED = "dropped"
    """A person took it out (``lightning-trainer drop``), whatever its mode was; recorded, never trained."""


SHADOW_MARK = ".shadow-v"
"""In the name of a shadow, separates the name of the rollout or attempt from the candidate's number."""


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
    """One reward observation: a ``gen_ai.evaluation.result``. If ``value`` is None, the evaluation gave no number."""

    name: str
    value: float | None
    rollout_id: str | None
    attempt_id: str | None
    span_id: str | None
    """The span that it evaluates, if it names one."""
    time_ns: int
    explanation: str | None = None
    agent: str | None = None
    """The agent that it evaluates, if it is about one agent and not about the whole attempt."""
    response_id: str | None = None
    """The response that it evaluates, if it names one."""
    trace_id: str | None = None
    """The trace of the span that it evaluates, since span ids are unique only within a trace."""
    source: str | None = None
    """Who or what gave it, if known: ``judge helpful (rubric, gpt-5-mini)``."""
    judge: str | None = None
    """The judge whose verdict it is; None if anything else gave it, including a person who used the judge's name."""


class Fidelity(StrEnum):
    """How faithfully the tokens of a call are known; it decides what the call may be used for."""

    EXACT = "exact"
    """The engine's own ids of prompt and response. Any algorithm may train on them, including reinforcement learning.
    """
    VERIFIED = "verified"
    """Ids made from the text by the policy's tokenizer and chat template, and checked against something that the
    engine reported (its token counts, or its scores of the ids). They have no behavior log-probabilities."""
    TEXT_ONLY = "text_only"
    """Only the text is known, no ids. Never a sample for reinforcement learning: other ids may spell the same text, and
    ids that the policy did not sample have no behavior log-probability."""


@dataclass(frozen=True, slots=True)
class Media:
    """A part of a prompt that is not text, by reference; the content stays where it was."""

    modality: str
    """``image``, ``audio``, ``video`` ..., or the part's own type if nothing more is known."""
    uri: str
    """As the agent gave it; content inside the message is named by its hash, ``sha256:...``."""
    mime_type: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One choice of one LLM call, with the tokens that the engine saw and sampled, if known."""

    call_id: str
    """``{span_id}/{choice}`` of the span that recorded the tokens; ``{span_id}.{trace_id}/{choice}`` if a call in
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
    """One per response id, in nats; None if the engine gave none."""
    finish_reason: str | None
    complete: bool
    """False if a stream ended early."""
    start_ns: int
    end_ns: int
    fidelity: Fidelity
    """Set by the code that makes the call from the record; it has no default, so that it cannot be forgotten."""
    temperature: float = 1.0
    """As requested; 1.0 if the request named none."""
    media: tuple[Media, ...] = ()
    """The parts of the prompt that are not text, in order; their tokens are placeholders in ``prompt_ids``."""
    shaping: Shaping | None = None
    """What was done to single logits; None if the request asked for nothing of the kind."""
    support: Support | None = None
    """What the response's tokens were drawn from; None if each could have been any token of the vocabulary."""
    sampling_unknown: str | None = None
    """Why it is unknown what the tokens were drawn from, as a sentence without its period; None if it is known."""
    state: str | None = None
    """The state of the environment when the call was made, as the agent named it (``lt.state``); None if it did not."""
    server: str | None = None
    """``host:port`` of the server that answered, by the client's record; None if the gateway recorded the call."""
    model: str | None = None
    """The model's name on that server; None if the gateway recorded the call."""
    routed_experts: RoutedExperts | None = None
    """Which experts its prompt and response went through; None if the engine does not report them."""

    @property
    def truncated(self) -> bool:
        """Whether the token limit (under OpenAI's name for it, Anthropic's two, or Gemini's) or the engine (vLLM's
        ``abort``) cut the response short."""
        return self.finish_reason is not None and self.finish_reason.lower() in _CUT_SHORT
