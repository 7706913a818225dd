"""What is made from the records for training: transitions, samples, batches, and the resulting versions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.token_ids import Ids
from lightning_trainer.types.recorded import Attempt, Media


@dataclass(frozen=True, slots=True)
class Transition:
    """A call of a selected agent as the learner sees it: state (prompt), action (response), reward."""

    transition_id: str
    agent: str
    attempt_id: str
    policy: str
    policy_version: int | None
    """None if ``gap`` is true, or if a trusted engine whose version is unknown sampled it."""
    prompt_ids: Ids
    response_ids: Ids
    behavior_logprobs: tuple[float, ...]
    reward: float | None
    """Reward of this step alone; None if nothing scored it."""
    start_ns: int
    parent_id: str | None = None
    """The transition of the same agent and attempt that this one follows; None for the first of a branch."""
    temperature: float = 1.0
    """What the logits are divided by in the distribution that ``behavior_logprobs`` come from."""
    extends: str | None = None
    """The transition of the same agent and attempt that this prompt begins with in full, token for token."""
    media: tuple[Media, ...] = ()
    """The parts of the prompt that are not text."""
    causes: tuple[str, ...] | None = None
    """The attempt's transitions, of any agent, that led directly to this one; None: no scheme asked for them."""
    shaping: Shaping | None = None
    """What was done to single logits; None: nothing."""
    support: Support | None = None
    """What the response's tokens were drawn from, one entry per response id; None: all of the vocabulary."""
    state: str | None = None
    """The environment's state, if the agent named it (``lt.state``)."""
    gap: bool = False
    """Whether the call was made but cannot be trained: it gets no credit, and reward flows across it."""
    routed_experts: RoutedExperts | None = None
    """Which experts prompt and response went through when the response was sampled; None: not known."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One agent's transitions in one attempt, with the reward of the whole attempt.

    The oldest comes first, and none comes before the one that it follows (``transitions/call_graph.py``). Where order
    matters, they are credited and trained in this order.
    """

    attempt: Attempt
    agent: str
    policy: str
    transitions: tuple[Transition, ...]
    reward: float | None
    """Terminal reward: of the attempt, not of a step; None if nothing scored it."""
    own_reward: float | None = None
    """This agent's own reward in the attempt, in addition to the attempt's; None if nothing scored it."""


@dataclass(frozen=True, slots=True)
class Credit:
    """What a credit scheme gives one transition."""

    value: float | None
    """In reward units; None if a reward that it needs is missing."""
    row_id: str
    """What the estimator compares: credits with one row id are one row (an attempt, or a single transition)."""
    peers: str = ""
    """A row is compared with those of the same group, agent, and peers; "" means with all of the agent's."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of sampled tokens ``[start, end)`` of a sample: the response of one transition.

    Tokens to which its ``support`` left no alternative have a loss mask of 0 (``Sample.trained_in``); at least one
    token has 1.
    """

    start: int
    end: int
    transition_id: str
    policy_version: int | None
    """None: a trusted engine sampled it, and it is unknown which version it served."""
    credit: float | None
    """What the credit scheme gives this transition, in reward units."""
    row_id: str
    """What the estimator compares: segments with one row id are one row (an attempt, or a single transition)."""
    peers: str = ""
    """A row is compared with those of the same group, agent, and peers."""
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
    """Which experts were chosen when it was sampled, by position in the sample: from the end of the segment before it
    to its own last token; None if unknown."""
    order: int = 0
    """Index of the transition among those of its agent in the attempt, in ``Trajectory``'s order. Batches that were
    stored without it have 0 everywhere, and their stored order is used."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A call that is not trained, among calls that are; schemes with a critic pass reward across it."""

    transition_id: str
    credit: float
    """What the call itself earned, in reward units; at the end of a branch, plus the reward of the attempt."""
    follows: str | None
    """The transition of the same agent and attempt that it follows."""
    agent: str | None = None
    """None: the sample's."""
    attempt_id: str | None = None
    """None: the sample's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence ready for the trainer; the lengths of ids, mask, and logprobs are always equal.

    Raises:
        ValueError: the lengths differ, the first token is marked as sampled, mask and segments disagree, or the
            temperature is not a positive number.
    """

    sample_id: str
    policy: str
    agent: str
    """The agent of its last call; a segment of another agent or attempt names it."""
    group_id: str
    attempt_id: str
    token_ids: Ids
    loss_mask: tuple[int, ...]
    """1 where the policy sampled the token and it is trained, else 0; tokens sampled without an alternative have 0."""
    behavior_logprobs: tuple[float, ...]
    """Of the sampling policy, in nats; 0.0 where the mask is 0."""
    segments: tuple[Segment, ...]
    temperature: float = 1.0
    """The temperature of all its sampled tokens; the trainer divides its logits by it too."""
    media: tuple[Media, ...] = ()
    """The parts of the sequence that are not text, in order."""
    baseline: float | None = None
    """Reward of the group's baseline attempt; None if the estimator needs none."""
    gaps: tuple[Gap, ...] = ()
    """Calls that follow one of its transitions and are in no sample; only for schemes with a critic."""

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
    """How many sampled tokens of one agent and policy version met one outcome for one reason."""

    agent: str
    policy: str | None
    policy_version: int | None
    outcome: Outcome
    reason: str
    tokens: int
    calls: int


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one step trains on; stored before the step, so that the step can be repeated exactly after a crash."""

    policy: str
    step: int
    samples: tuple[Sample, ...]
    media: Mapping[str, bytes] = field(default_factory=dict)
    """What the samples refer to, by address (``Media.uri``); not stored with the batch, but filled in for a trainer."""
    made_for: Mapping[str, str] = field(default_factory=dict)
    """The policy's settings that give the samples their meaning, by dotted name; empty in older batches."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the trainer did with a batch."""

    step: int
    metrics: Mapping[str, float]
    """By verl's own names (``actor/pg_loss``, ``actor/grad_norm`` ...)."""
    advantages: Mapping[str, tuple[float, ...]]
    """By sample id, one value per token, 0.0 where the mask is 0."""
    tokens_trained: int
    tokens_computed: int
    """Positions that went through the model: the nodes of the token tree."""
    tokens_sequential: int
    """Positions without sharing: the sum of the samples' lengths."""
    seconds: Mapping[str, float]
    settings: Mapping[str, str] = field(default_factory=dict)
    """The policy's settings that the weights depend on, by dotted name; empty in older reports."""


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
    """Largest |trainer - engine| over the probe's log-probabilities, in nats."""
    probe_mean_abs: float | None = None
    publish_s: float | None = None
    """Seconds from the trainer's tensors to the first request that they may answer."""
    reason: str | None = None
    """Why it was refused."""

    @property
    def name(self) -> str:
        """Return ``<policy>@v<version>``."""
        return f"{self.policy}@v{self.version}"
