"""The vocabulary: what travels on the road from a span to a served policy version.

Torch-free and frozen: every stage reads these and makes new ones. Token ids are plain ints, log-probabilities are in
nats, times are Unix nanoseconds. ``None`` means "not measured" and is never a stand-in for zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from lightning_trainer.bulk_objects import made_quickly
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

        Returns only after the commit: whoever is told that a span was accepted may forget it.
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
    DROPPED = "dropped"
    """Somebody took it out (``lightning-trainer drop``), whatever its mode was; recorded, never trained."""


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
    engine said (its token counts, or its scores of the ids). No behaviour log-probabilities come with them."""
    TEXT_ONLY = "text_only"
    """What was said is known, and no ids. Never a sample of reinforcement learning: other ids may spell the same text,
    and what the policy did not sample has no log-probability under it."""


@dataclass(frozen=True, slots=True)
class Media:
    """A part of a prompt that is no text, by reference: what it is stays where it was."""

    modality: str
    """``image``, ``audio``, ``video`` ..., or the part's own type where it says no more."""
    uri: str
    """As the agent gave it; what travelled inside of the message is named by its hash, ``sha256:...``."""
    mime_type: str | None = None


@made_quickly
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
    """Set by whoever makes the call from what was recorded; it has no default, so nobody forgets it."""
    temperature: float = 1.0
    """As requested; 1.0 where the request named none."""
    media: tuple[Media, ...] = ()
    """What of the prompt is no text, in order; its tokens are placeholders in ``prompt_ids``."""
    shaping: Shaping | None = None
    """What was done to single logits; None where the request asked for none of it."""
    support: Support | None = None
    """What the response's tokens were drawn from; None where each could have been any token of the vocabulary."""
    sampling_unknown: str | None = None
    """Why it cannot be said what they were drawn from, as a sentence without its full stop; None where it can."""
    state: str | None = None
    """The state of the environment that the agent says it was made in (``lightning.state``); None: it says nothing."""
    server: str | None = None
    """``host:port`` of what answered, by the client's record of it; None where the gateway recorded it."""
    model: str | None = None
    """As that server calls it; None where the gateway recorded it."""
    routed_experts: RoutedExperts | None = None
    """Which experts its prompt and response went through; None where the engine does not tell."""


@made_quickly
@dataclass(frozen=True, slots=True)
class Transition:
    """A call of a selected agent as the learner sees it: state (prompt), action (response), reward."""

    transition_id: str
    agent: str
    attempt_id: str
    policy: str
    policy_version: int | None
    """None where ``gap`` is true, and where an engine sampled that is trusted and whose version nobody knows."""
    prompt_ids: Ids
    response_ids: Ids
    behavior_logprobs: tuple[float, ...]
    reward: float | None
    """Reward of this step alone; None when nothing scored it."""
    start_ns: int
    parent_id: str | None = None
    """The transition of the same agent and attempt that this one follows; None for the first of a branch."""
    temperature: float = 1.0
    """What the logits are divided by in the distribution that ``behavior_logprobs`` come from."""
    extends: str | None = None
    """The transition of the same agent and attempt that the prompt begins with in full, token for token."""
    media: tuple[Media, ...] = ()
    """What of the prompt is no text."""
    causes: tuple[str, ...] | None = None
    """The transitions of the attempt, of any agent, that led to this one directly; None: no scheme asked for them."""
    shaping: Shaping | None = None
    """What was done to single logits; None: nothing."""
    support: Support | None = None
    """What the response's tokens were drawn from, one entry per response id; None: all of the vocabulary."""
    state: str | None = None
    """The state that the agent named; None where it named none."""
    gap: bool = False
    """The call was made and there is a reason against training it: no credit is given to it, reward flows across it."""
    routed_experts: RoutedExperts | None = None
    """Which experts prompt and response went through when it was sampled; None: not known."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One agent's transitions in one attempt, with the reward of the whole attempt.

    Oldest first, and none before the one that it follows (``transitions/lineage.py``): the order in which they are
    credited and trained, wherever order counts.
    """

    attempt: Attempt
    agent: str
    policy: str
    transitions: tuple[Transition, ...]
    reward: float | None
    """Terminal reward: of the attempt, not of a step; None when nothing scored it."""
    own_reward: float | None = None
    """Of this agent in the attempt, beside the attempt's; None when nothing scored it."""


@made_quickly
@dataclass(frozen=True, slots=True)
class Credit:
    """What a credit scheme gives one transition."""

    value: float | None
    """In reward units; None when a reward that it needs is missing."""
    row_id: str
    """What the estimator compares: credits with one row id are one row (an attempt, or a single transition)."""
    peers: str = ""
    """Rows are compared with those of the same group, agent and peers; "" is with all of the agent's."""


@made_quickly
@dataclass(frozen=True, slots=True)
class Segment:
    """A run of sampled tokens ``[start, end)`` of a sample: the response of one transition.

    Tokens that its ``support`` left no choice about have a loss mask of 0 (``Sample.trained_in``); one at least has 1.
    """

    start: int
    end: int
    transition_id: str
    policy_version: int | None
    """None: an engine sampled it that is trusted, and nobody knows which version it served."""
    credit: float | None
    """What the credit scheme gives this transition, in reward units."""
    row_id: str
    """What the estimator compares: segments with one row id are one row (an attempt, or a single transition)."""
    peers: str = ""
    """Rows are compared with those of the same group, agent and peers."""
    agent: str | None = None
    """None: the sample's."""
    attempt_id: str | None = None
    """None: the sample's."""
    follows: str | None = None
    """The transition of the same agent and attempt that this one follows, trained or not; None for the first of a
    branch."""
    shaping: Shaping | None = None
    """What was done to single logits when its tokens were sampled; None: nothing."""
    support: Support | None = None
    """What its tokens were drawn from, one entry per token of the segment; None: all of the vocabulary."""
    routed_experts: RoutedExperts | None = None
    """Which experts were chosen when it was sampled, at positions of the sample: from where the segment before it ends
    to its own last token; None: not known."""
    order: int = 0
    """Place of the transition among those of its agent in the attempt, by ``Trajectory``'s order; all 0 in batches that
    were stored without it, which are taken in the order that they are in."""


@made_quickly
@dataclass(frozen=True, slots=True)
class Gap:
    """A call that is not trained, among those that are: what a critic's schemes pass reward across."""

    transition_id: str
    credit: float
    """What it earned itself, in reward units; at the end of a branch with the reward of the attempt."""
    follows: str | None
    """The transition of the same agent and attempt that it follows."""
    agent: str | None = None
    """None: the sample's."""
    attempt_id: str | None = None
    """None: the sample's."""


@made_quickly
@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence ready for the trainer; the lengths of ids, mask and logprobs are equal, always.

    Raises:
        ValueError: the lengths differ, the first token is marked as sampled, mask and segments disagree, or the
            temperature is not a positive number.
    """

    sample_id: str
    policy: str
    agent: str
    """Of its last call; a segment of another agent or attempt says so itself."""
    group_id: str
    attempt_id: str
    token_ids: Ids
    loss_mask: tuple[int, ...]
    """1 where the policy sampled the token and it is trained, else 0: a token without a choice was sampled, too."""
    behavior_logprobs: tuple[float, ...]
    """Of the sampling policy, nats; 0.0 where the mask is 0."""
    segments: tuple[Segment, ...]
    temperature: float = 1.0
    """Of all its sampled tokens; the trainer divides its logits by it too."""
    media: tuple[Media, ...] = ()
    """What of the sequence is no text, in order."""
    baseline: float | None = None
    """Reward of the group's baseline attempt; None where the estimator asks for none."""
    gaps: tuple[Gap, ...] = ()
    """Calls that come after one of its transitions and are trained in no sample; only where a critic's scheme asks."""

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if not len(self.loss_mask) == len(self.behavior_logprobs) == n:
            raise ValueError(
                f"sample {self.sample_id}: {n} token ids, {len(self.loss_mask)} mask entries and "
                f"{len(self.behavior_logprobs)} logprobs; the three must be equal"
            )
        if n == 0 or self.loss_mask[0]:
            raise ValueError(f"sample {self.sample_id}: a sample starts with at least one prompt token")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"sample {self.sample_id}: temperature {self.temperature}; it must be a positive number")
        named = 0
        for segment in self.segments:
            trained = sum(self.loss_mask[segment.start : segment.end])
            whole = segment.support is not None or trained == segment.end - segment.start
            named += trained if trained and whole else math.inf
        if named != sum(self.loss_mask):
            raise ValueError(f"sample {self.sample_id}: the mask and the segments name different tokens")

    def trained_in(self, segment: Segment) -> Sequence[int]:
        """Return the positions of a segment's tokens that are trained, ascending."""
        run = range(segment.start, segment.end)
        if segment.support is None:
            return run
        return [position for position in run if self.loss_mask[position]]


class Outcome(StrEnum):
    """What became of a sampled token."""

    TRAINED = "trained"
    MASKED = "masked"
    DEDUPLICATED = "deduplicated"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """So many sampled tokens of one agent and policy version met one outcome for one reason."""

    agent: str
    policy: str | None
    policy_version: int | None
    outcome: Outcome
    reason: str
    tokens: int
    calls: int


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one step trains on: stored before the step, so that a crash can repeat it exactly."""

    policy: str
    step: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the trainer did with a batch."""

    step: int
    metrics: Mapping[str, float]
    """By verl's own names (``actor/pg_loss``, ``actor/grad_norm`` ...)."""
    advantages: Mapping[str, tuple[float, ...]]
    """By sample id, one value a token, 0.0 where the mask is 0."""
    tokens_trained: int
    tokens_computed: int
    """Positions that went through the model: the nodes of the token tree."""
    tokens_sequential: int
    """Positions without sharing: the sum of the samples' lengths."""
    seconds: Mapping[str, float]


class VersionState(StrEnum):
    """Life of a policy version: trained -> live -> retired, or refused. A restart offers the newest once more."""

    TRAINED = "trained"
    LIVE = "live"
    REFUSED = "refused"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """An immutable publication of a policy. Version 0 is the model that the run started from."""

    policy: str
    version: int
    step: int
    state: VersionState
    created_ns: int
    checksum: str | None = None
    probe_max_abs: float | None = None
    """Largest |trainer - engine| over the probe's log-probabilities, nats."""
    probe_mean_abs: float | None = None
    publish_s: float | None = None
    """From the trainer's tensors to the first request let through to them."""
    reason: str | None = None
    """Why it was refused."""

    @property
    def name(self) -> str:
        return f"{self.policy}@v{self.version}"
