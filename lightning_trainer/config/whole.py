"""The whole of ``lightning.toml``."""

from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import ValidationInfo, field_validator, model_validator

from lightning_trainer.config.daemon import DaemonConfig
from lightning_trainer.config.engine import EngineConfig
from lightning_trainer.config.judges import JudgeConfig, ModelJudge, ProgramConfig, ReferenceProbabilityConfig
from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.config.policies.policy import PolicyConfig
from lightning_trainer.config.prompts import PromptConfig
from lightning_trainer.config.sections import EnvironmentsConfig, FeedbackConfig, GatewayConfig, RayConfig, Section
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.errors import ConfigError


class Config(Section):
    """The whole file."""

    daemon: DaemonConfig = DaemonConfig()
    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    training: TrainingConfig = TrainingConfig()
    ray: RayConfig = RayConfig()
    metrics: MetricsConfig = MetricsConfig()
    store: StoreConfig = StoreConfig()
    feedback: FeedbackConfig = FeedbackConfig()
    """What people and systems say about answers (docs/feedback.md)."""
    policy: tuple[PolicyConfig, ...] = ()
    """Without one, the daemon only records: it neither routes, serves, nor trains."""
    environments: EnvironmentsConfig = EnvironmentsConfig()
    """Worlds that agents act in (docs/environments.md)."""
    judge: tuple[JudgeConfig, ...] = ()
    """Judges, each of which gives the reward of its name (docs/rewards.md)."""
    prompt: tuple[PromptConfig, ...] = ()
    """Prompts, and how better texts of each are proposed (docs/prompts.md); one without a section gets examples."""

    @field_validator("judge", "prompt")
    @classmethod
    def _names_differ(cls, sections: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        names = [section.name for section in sections]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{names.count(name)} {info.field_name}s are called {name!r}; give each a name of its own"
                )
        return sections

    @field_validator("policy")
    @classmethod
    def _in_order(cls, policies: tuple[PolicyConfig, ...]) -> tuple[PolicyConfig, ...]:
        names = [policy.name for policy in policies]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{names.count(name)} policies are called {name!r}; give each a name of its own")
        return tuple(policy.behind(policies[:position]) for position, policy in enumerate(policies))

    @model_validator(mode="after")
    def _adapters_keep_their_base(self) -> Self:
        if self.engine.sleep_level == 2 and any(policy.lora is not None for policy in self.policy):
            raise ValueError(
                "engine.sleep_level = 2 throws the weights away and publications bring an adapter alone; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _a_cluster_is_used(self) -> Self:
        if self.ray.address is None:
            if self.engine.placement == "cluster":
                raise ValueError(
                    'engine.placement = "cluster" needs a cluster: set address in [ray] to that of its head, or leave '
                    "placement out"
                )
            return self
        if self.training.backend != "ray":
            raise ValueError(
                f'ray.address = {self.ray.address!r} needs training.backend = "ray"; leave one of them out'
            )
        if "device" not in self.training.model_fields_set:
            raise ValueError(
                'ray.address joins a cluster whose machines are not seen from here; say device = "cuda" or "cpu" in '
                "[training]"
            )
        if self.training.gpus is not None:
            raise ValueError(
                "training.gpus names GPUs of this machine, and Ray assigns those of the cluster at ray.address; leave "
                "gpus out"
            )
        return self

    @model_validator(mode="after")
    def _corrected_judges_are_checked(self) -> Self:
        judges = {judge.name: judge for judge in self.judge}
        for policy in self.policy:
            for name in sorted({name for one in policy.of_stages for name in one.corrected_rewards}):
                if name not in judges:
                    raise ValueError(f"policy {policy.name!r} corrects reward {name!r}, and no [[judge]] gives it")
                if judges[name].of_parts:
                    raise ValueError(
                        f"policy {policy.name!r} corrects judge {name!r}, which scores agents or calls, and only "
                        "rewards of whole attempts are compared with right ones; leave correct out"
                    )
                if not judges[name].checked_by:
                    raise ValueError(
                        f"policy {policy.name!r} corrects judge {name!r}, which nothing is compared with; name rewards "
                        "that are right in its checked_by"
                    )
        return self

    @model_validator(mode="after")
    def _reference_judges_have_a_policy(self) -> Self:
        for judge in self.judge:
            if isinstance(judge, ReferenceProbabilityConfig):
                try:
                    self.named_policy(judge.policy)
                except ConfigError as error:
                    raise ValueError(
                        f"judge {judge.name!r} asks a policy's own engine (policy = ...): {error}"
                    ) from error
        return self

    @model_validator(mode="after")
    def _canaries_are_judged(self) -> Self:
        judges = {judge.name: judge for judge in self.judge}
        for policy in self.policy:
            for name in sorted(policy.all_reward_names) if policy.canary is not None else ():
                judge = judges.get(name)
                kind = None if judge is None else _kind_for_groups(judge)
                if policy.canary is not None and policy.canary.shadow and (judge is None or kind is not None):
                    what = "no [[judge]] gives it" if judge is None else f"its judge is of kind {kind}"
                    raise ValueError(
                        f"policy {policy.name!r} has canary.shadow = true, where nobody sees the candidate's answers: "
                        f"reward {name!r} has to come from a judge of single attempts (rubric, agent_credit, program), "
                        f"and {what}; add one, or leave shadow out"
                    )
                if kind is not None:
                    raise ValueError(
                        f"policy {policy.name!r} has a canary, and the judge of reward {name!r} is of kind {kind}, "
                        "whose scores are comparable within a group alone, not between two versions: take a judge of "
                        "single attempts (rubric, agent_credit, program), or a guard instead of the canary"
                    )
                if (
                    policy.lora is None
                    and isinstance(judge, ModelJudge)
                    and self._asked_version(judge, policy) is not None
                ):
                    raise ValueError(
                        f"policy {policy.name!r} has a canary, and the judge of reward {name!r} asks its own old "
                        f"version {judge.model!r}, which is not served next to a candidate of all weights: let another "
                        "model judge, train with lora, or take a guard instead of the canary"
                    )
        return self

    def versions_that_judge(self, policy: PolicyConfig) -> frozenset[int]:
        """Return the old versions of the policy that judges ask of this daemon, and whose weights must be kept."""
        asked = [self._asked_version(judge, policy) for judge in self.judge if isinstance(judge, ModelJudge)]
        return frozenset(version for version in asked if version is not None)

    def _asked_version(self, judge: ModelJudge, policy: PolicyConfig) -> int | None:
        """Return the old version of the policy that a judge asks of this daemon; None if it asks none."""
        at = urlsplit(judge.base_url)
        ours = at.port == self.daemon.port and at.hostname in (self.daemon.host, "127.0.0.1", "::1", "localhost")
        version = judge.model.removeprefix(f"{policy.name}@v")
        asks = ours and version != judge.model and version.isascii() and version.isdigit()
        return int(version) if asks else None

    def named_judge(self, name: str) -> JudgeConfig:
        """Return the judge of that name. Raises ConfigError: there is none."""
        for judge in self.judge:
            if judge.name == name:
                return judge
        known = f"it has {', '.join(one.name for one in self.judge)}" if self.judge else "it has none; docs/rewards.md"
        raise ConfigError(f"there is no [[judge]] {name!r} in the configuration: {known}")

    def engine_of(self, policy: PolicyConfig) -> EngineConfig:
        """Return the settings of a policy's engine: those of ``[engine]``, overridden by the policy's own."""
        return self.engine.model_copy(update=policy.engine.model_dump(exclude_none=True))

    @property
    def shared_dir(self) -> Path:
        """The folder of checkpoints and versions' weights, which all daemons of a store see."""
        return self.store.shared_dir or self.daemon.state_dir

    @property
    def only_policy(self) -> PolicyConfig:
        """Return the only policy. Raises ConfigError: there are several, or none."""
        return self.named_policy(None)

    @property
    def only_reward_name(self) -> str:
        """Return the name of the policies' only reward; without a policy, the name that rewards have by default.

        Raises:
            ConfigError: there are several.
        """
        names = sorted({name for policy in self.policy for name in policy.all_reward_names})
        if len(names) > 1:
            raise ConfigError(
                f"the label names no reward, and the policies have several: name one of {', '.join(names)}"
            )
        return names[0] if names else "reward"

    def named_policy(self, name: str | None) -> PolicyConfig:
        """Return the policy of that name; without a name, the only one.

        Raises:
            ConfigError: there is none, or there are several and no name was given.
        """
        if not self.policy:
            raise ConfigError(
                f"there is no policy{'' if name is None else f' {name!r}'}: the configuration has no [[policy]]; add "
                "one, or name another configuration with --config"
            )
        if name is None and len(self.policy) == 1:
            return self.policy[0]
        for policy in self.policy:
            if policy.name == name:
                return policy
        names = ", ".join(policy.name for policy in self.policy)
        raise ConfigError(
            f"name one of the policies {names}" + ("" if name is None else f"; {name!r} is not one of them")
        )


def _kind_for_groups(judge: JudgeConfig) -> str | None:
    """Return the kind, as the file writes it, of a judge whose scores mean nothing outside a group; None for others."""
    if not judge.of_groups:
        return None
    return f"{judge.kind!r} with whole_group = true" if isinstance(judge, ProgramConfig) else repr(judge.kind)
