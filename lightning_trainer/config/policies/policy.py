"""``[[policy]]``: a set of weights, the agents whose calls are served from it, and how they are trained."""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from lightning_instrumentation.routing.selection import fits
from pydantic import AliasChoices, Field, PrivateAttr, field_validator, model_validator

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.config.engine import OwnEngineConfig
from lightning_trainer.config.policies import estimators
from lightning_trainer.config.policies.credit import CreditConfig, HierarchicalCredit, TerminalCredit, named_scheme
from lightning_trainer.config.policies.rewards import Reward, checked_reward, corrected_of, weights_of
from lightning_trainer.config.policies.stages import StageConfig, first_steps, last_step
from lightning_trainer.config.policies.trusted import TrustedEngine
from lightning_trainer.config.policies.updates import LoraConfig, OptimizerConfig
from lightning_trainer.config.policies.versions import CanaryConfig, GuardConfig, VersionsConfig
from lightning_trainer.config.sections import Section

# Which agents a policy claims: patterns of names.

ALL_AGENTS = "*"
"""The pattern of all agents, and of calls without an agent's name."""


def matches(agent: str | None, patterns: Iterable[str]) -> bool:
    """Whether an agent's name fits one of the names or patterns; an absent name fits only ``*``."""
    return ALL_AGENTS in patterns if agent is None else fits(agent, patterns)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class PolicyConfig(Section):
    """``[[policy]]``: a set of weights and the agents whose calls are served from it."""

    name: Name
    agents: tuple[str, ...] = Field(min_length=1)
    """Agent names or patterns (``fixer*``). Calls that no policy claims are traced but never trained. ``*`` also claims
    calls without an agent's name."""
    model: str
    """A folder (relative to the configuration's), a Hugging Face id, ``embedded:smollm2-135m-instruct``, or
    ``random:tiny`` (for tests)."""
    group_size: int = Field(default=8, ge=2)
    groups_per_step: int = Field(default=8, ge=1)
    group_timeout_s: float = Field(default=600.0, gt=0)
    """A group with two ended attempts for which nothing arrives for this long is trained with what it has."""
    span_timeout_s: float = Field(default=30.0, ge=0)
    """An attempt that has ended but lacks spans is held back until none has arrived for this long; 0: it never is."""
    samples: Literal["calls", "merged", "tree"] = "merged"
    """What makes one sequence: a call; an agent's calls in an attempt, if they extend each other token for token; or
    any calls of the group that do (``transitions/sequences.py``)."""
    max_sample_tokens: int = Field(default=2048, ge=8)
    over_length: Literal["drop", "cut"] = "drop"
    """A response that does not fit is left out, or trained up to the limit (``transitions/length_limit.py``)."""
    failed_attempts: Literal["train", "drop"] = "train"
    """Whether attempts whose code raised an error are trained if they were scored."""
    non_text: Literal["drop", "keep"] = "drop"
    """Calls with images or the like: ``keep`` makes samples that refer to them, which train a vision-language model."""
    group_by: Literal["key", "task", "prompt"] = "key"
    """Which attempts are compared: those of one ``lightning.group.id`` (the task id if there is none), of one task id
    whatever the group id says, or those whose first prompt is the same, token for token."""
    reward: Reward = "reward"
    """Name of the evaluation that is the reward, or several with their weights: ``{score = 1.0, format = 0.2}``; for a
    judge's also ``{helpful = {weight = 1.0, correct = true}}``."""
    reward_wait_s: float = Field(default=0.0, ge=0, le=86400)
    """How long a step waits for rewards that its ended attempts still lack; one that comes later is not trained."""
    max_staleness: int | None = Field(default=None, ge=0)
    """How many versions may have gone live since the one that sampled a trained token; calls older than that are
    dropped. The runner starts attempts that many steps ahead; 0 is synchronous. None: synchronous, and live traffic
    counts whatever its age."""
    allow_retokenized: bool = Field(
        default=False, validation_alias=AliasChoices("allow_retokenized", "allow_retokenised")
    )
    """Also train on ids that were retokenized from text and verified (``lightning-trainer build --retokenize``), if the
    engine scored them: the policy ratio against the scores corrects for what the model may have sampled instead. The
    British spelling is accepted, too."""
    trusted: tuple[TrustedEngine, ...] = ()
    """Engines besides the daemon's own whose exact calls are trained, too; absent: none."""
    train_recorded: bool = False
    """Also train attempts that were recorded before the policy was first started."""
    train: bool = True
    """False: record and serve, never update."""
    max_steps: int | None = Field(default=None, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    """In steps. After a crash, batches recorded since the last checkpoint are repeated and give the same weights."""
    keep_checkpoints: int = Field(default=2, ge=1)
    versions: VersionsConfig = VersionsConfig()
    """Which weights stay served as ``POLICY@vN``."""
    guard: GuardConfig | None = None
    """None: every version that passes its probe goes live."""
    canary: CanaryConfig | None = None
    """None: a version goes live for all rollouts at once."""
    credit: CreditConfig = TerminalCredit()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig | None = None
    """None: all weights are trained and published."""
    engine: OwnEngineConfig = OwnEngineConfig()
    """How its engine differs from ``[engine]``."""
    stage: tuple[StageConfig, ...] = ()
    """Trained one after the other; without any, ``algorithm`` and ``credit`` hold for every step."""
    _taken: tuple[str, ...] = PrivateAttr(())
    """Patterns of the policies before this one in the configuration: the first that matches claims the agent."""
    _only: tuple[str, ...] | None = PrivateAttr(None)
    """Patterns that agents must match as well; None: any."""

    @field_validator("agents")
    @classmethod
    def _no_empty_pattern(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        if any(not pattern.strip() for pattern in patterns):
            raise ValueError('an agent pattern is empty; name the agents, or use "*" for all of them')
        return patterns

    @field_validator("credit", mode="before")
    @classmethod
    def _known_scheme(cls, value: Any) -> Any:
        return named_scheme(value)

    _reward = field_validator("reward")(checked_reward)

    @model_validator(mode="after")
    def _stages_that_can_be(self) -> Self:
        for stage in self.stage:
            stage.require_use_of_all(self.algorithm)
        for first_step in first_steps(self.stage):
            self.at_step(first_step)._fits_together()
        models = sorted({named for one in self.of_stages if (named := one.algorithm.reference_model) is not None})
        if len(models) > 1:
            raise ValueError(f"the stages name the reference models {', '.join(models)}; one is loaded, name one")
        follows = [one.algorithm.reference_model is None for one in self.of_stages if one.algorithm.needs_reference]
        if models and any(follows) and not all(follows):
            raise ValueError(
                f"the stages name the reference model {models[0]}, and a stage that needs a reference too names none; "
                "one is loaded for all: name it in each, or in none, so that each has the policy as it began with it"
            )
        return self

    @model_validator(mode="after")
    def _trusted_can_be_trained(self) -> Self:
        if self.train_recorded and not self.trusted:
            raise ValueError(
                "train_recorded = true trains calls of engines that [[policy.trusted]] names, and there is none; add it"
            )
        if not self.takes_unknown_versions:
            return self
        if self.max_staleness is not None:
            raise ValueError(
                f"max_staleness = {self.max_staleness} bounds the age of trained tokens, which is unknown for trusted "
                'engines with version = "unknown"; leave max_staleness out, or give the version'
            )
        if any(one.algorithm.objective == "rl" and one.algorithm.rollout_is is None for one in self.of_stages):
            raise ValueError(
                'a trusted engine with version = "unknown" may have sampled with any weights, so its tokens need '
                'truncated importance weights; set rollout_is = "token" in [policy.algorithm], or give the version'
            )
        return self

    @model_validator(mode="after")
    def _one_baseline(self) -> Self:
        return self._fits_together()

    def _fits_together(self) -> Self:
        if self.algorithm.objective != "rl" and self.credit.scheme != "terminal":
            raise ValueError(
                f"credit scheme {self.credit.scheme!r} divides rewards, and {self.algorithm.objective!r} only compares "
                "attempts; leave credit out"
            )
        weighed = self.credit.agent_weights if isinstance(self.credit, HierarchicalCredit) else ()
        if nobody := [agent for agent in weighed if not set(agent) & set("*?[") and not matches(agent, self.agents)]:
            raise ValueError(
                f"agent_weights names {', '.join(map(repr, nobody))}, and the policy claims "
                f"{', '.join(map(repr, self.agents))}; name one of its agents, or a pattern of them"
            )
        chosen = self.algorithm.advantage
        by_preset = self.algorithm.preset and PRESETS[self.algorithm.preset].get("advantage") == chosen
        given = "advantage" in self.algorithm.model_fields_set and not by_preset
        if self.credit.gives_advantages and given and chosen != estimators.CREDIT:
            raise ValueError(
                f"credit scheme {self.credit.scheme!r} takes off its baseline itself, and algorithm.advantage = "
                f"{chosen!r} would take off another; leave algorithm.advantage out"
            )
        if self.algorithm.needs_baseline and self.credit.scheme != "terminal":
            raise ValueError(
                f"algorithm.advantage = {chosen!r} takes the reward of a greedy attempt off that of each attempt, and "
                f"credit scheme {self.credit.scheme!r} gives calls something else; leave credit out (it is 'terminal')"
            )
        if self.algorithm.overlong is not None:
            self.algorithm.overlong.longest(self.max_sample_tokens)
        if self.estimator == estimators.CREDIT and not self.credit.needs_values:
            by = f"credit scheme {self.credit.scheme!r} gives advantages"
            if not self.credit.gives_advantages:
                by = "with advantage = 'credit' there are only advantages"
            if self.algorithm.kl_reward_coef:
                raise ValueError(
                    f"kl_reward_coef = {self.algorithm.kl_reward_coef} is taken off rewards, and {by}; use kl_loss_coef"
                )
            if self.algorithm.overlong is not None:
                raise ValueError(
                    f"overlong shaping is taken off rewards, and {by}; leave one of them out "
                    '(algorithm.overlong = "none" does, where the preset has it)'
                )
        return self

    def at_step(self, step: int) -> "PolicyConfig":
        """Return the policy as it is trained in a step: with the settings of the stage that the step belongs to."""
        index = bisect_right(first_steps(self.stage), step) - 1
        return self._in_stage(self.stage[index]) if index >= 0 else self

    def stage_at(self, step: int) -> tuple[int, StageConfig] | None:
        """Return the number of the first step of a step's stage, and the stage itself; None if there are no stages."""
        starts = first_steps(self.stage)
        index = bisect_right(starts, step) - 1
        return (starts[index], self.stage[index]) if index >= 0 else None

    def _in_stage(self, stage: StageConfig) -> "PolicyConfig":
        algorithm = stage.algorithm or self.algorithm
        imitates = algorithm.objective != "rl"
        changed: dict[str, Any] = {
            "stage": (),
            "algorithm": algorithm,
            "credit": TerminalCredit() if imitates else stage.credit or self.credit,
            "reward": stage.reward or self.reward,
            "optimizer": self.optimizer.model_copy(update={"lr": stage.lr or self.optimizer.lr}),
        }
        return self.model_copy(update=changed)

    @property
    def of_stages(self) -> tuple["PolicyConfig", ...]:
        """The policy as it is trained in each stage; the policy itself if it has no stages."""
        return tuple(self._in_stage(stage) for stage in self.stage) or (self,)

    @property
    def last_step(self) -> int | None:
        """The step after which training ends: ``max_steps``, or the last stage's last one; None: it never does."""
        return min((end for end in (self.max_steps, last_step(self.stage)) if end is not None), default=None)

    def takes_attempts_after(self, step: int) -> bool:
        """Whether a later step takes attempts; a step that trains on a file takes none."""
        last = math.inf if self.last_step is None else self.last_step
        if not self.stage:
            return step < last
        for first, stage in zip(first_steps(self.stage), self.stage, strict=True):
            end = last if stage.steps is None else min(last, first + stage.steps - 1)
            if stage.data is None and first <= end and step < end:
                return True
        return False

    @property
    def shown_steps(self) -> tuple[tuple[int, int | None], ...]:
        """First and last step of every stage that trains on a file, which needs no attempts."""
        return tuple(
            (first, None if stage.steps is None else first + stage.steps - 1)
            for first, stage in zip(first_steps(self.stage), self.stage, strict=True)
            if stage.data is not None
        )

    @property
    def reference_model(self) -> str | None:
        """The frozen model named by a stage that needs a reference; None: the policy as it was before the stage."""
        named = (one.algorithm.reference_model for one in self.of_stages if one.algorithm.needs_reference)
        return next((model for model in named if model is not None), None)

    @property
    def takes_unknown_versions(self) -> bool:
        """Whether it trains on calls whose sampling version is unknown."""
        return any(engine.version == "unknown" for engine in self.trusted)

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """Weights of the rewards, by the name of the evaluation."""
        return weights_of(self.reward)

    @property
    def corrected_rewards(self) -> frozenset[str]:
        """Names of the rewards that are corrected for their judge's errors."""
        return corrected_of(self.reward)

    @property
    def all_reward_names(self) -> frozenset[str]:
        """Names of the evaluations that are a reward in any stage."""
        return frozenset(name for one in self.of_stages for name in one.reward_weights)

    @property
    def estimator(self) -> str:
        """The advantage estimator that runs on the credits; ``credit`` means none."""
        return estimators.CREDIT if self.credit.gives_advantages else self.algorithm.advantage

    def claims(self, agent: str | None) -> bool:
        """Whether calls of this agent belong to the policy (shell-style patterns, case matters).

        If the patterns of several policies match, the agent belongs to the first of them in the configuration. Calls
        without an agent's name (None) belong to the first that lists ``*``: no other pattern matches an absent name.
        """
        return (
            matches(agent, self.agents)
            and not matches(agent, self._taken)
            and (self._only is None or matches(agent, self._only))
        )

    def only(self, agents: Iterable[str]) -> "PolicyConfig":
        """Return the policy restricted to those of its agents that match some patterns.

        Raises:
            ValueError: a pattern is empty.
        """
        policy = self.model_copy()
        policy._only = self._no_empty_pattern(tuple(agents))
        return policy

    def rewarded_by(self, reward: Reward) -> "PolicyConfig":
        """Return the policy with another reward.

        Raises:
            ValueError: it names nothing, or a weight is not allowed.
        """
        return self.model_copy(update={"reward": checked_reward(reward)})

    def behind(self, before: Iterable["PolicyConfig"]) -> "PolicyConfig":
        """Return the policy with others before it in the configuration, which claim their agents first."""
        policy = self.model_copy()
        policy._taken = tuple(pattern for other in before for pattern in other.agents)
        return policy


def any_agent() -> PolicyConfig:
    """Return a policy that claims every agent, for examining recorded calls when no policy is configured.

    It has no model, so no call is too long for it: calls can be judged with it, but it can be neither served nor
    trained.
    """
    return PolicyConfig(name="no-policy", agents=(ALL_AGENTS,), model="none", max_sample_tokens=sys.maxsize)
