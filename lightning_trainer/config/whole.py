"""The whole of ``lightning.toml``."""

from pydantic import field_validator

from lightning_trainer.config.daemon import DaemonConfig
from lightning_trainer.config.engine import EngineConfig
from lightning_trainer.config.environments import EnvironmentsConfig
from lightning_trainer.config.gateway import GatewayConfig
from lightning_trainer.config.judges import JudgeConfig
from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.config.policies.policy import PolicyConfig
from lightning_trainer.config.section import Section
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.errors import ConfigError


class Config(Section):
    """The whole file."""

    daemon: DaemonConfig = DaemonConfig()
    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    training: TrainingConfig = TrainingConfig()
    metrics: MetricsConfig = MetricsConfig()
    store: StoreConfig = StoreConfig()
    policy: tuple[PolicyConfig, ...] = ()
    """Without any the daemon records, and neither routes, serves nor trains."""
    environments: EnvironmentsConfig = EnvironmentsConfig()
    """Worlds that agents act in (docs/environments.md)."""
    judge: tuple[JudgeConfig, ...] = ()
    """Who gives rewards of their names (docs/rewards.md)."""

    @field_validator("judge")
    @classmethod
    def _judges_differ(cls, judges: tuple[JudgeConfig, ...]) -> tuple[JudgeConfig, ...]:
        names = [judge.name for judge in judges]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{names.count(name)} judges are called {name!r}; give each a name of its own")
        return judges

    @field_validator("policy")
    @classmethod
    def _in_order(cls, policies: tuple[PolicyConfig, ...]) -> tuple[PolicyConfig, ...]:
        names = [policy.name for policy in policies]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{names.count(name)} policies are called {name!r}; give each a name of its own")
        return tuple(policy.behind(policies[:position]) for position, policy in enumerate(policies))

    def named_judge(self, name: str) -> JudgeConfig:
        """Raises ConfigError: there is none."""
        for judge in self.judge:
            if judge.name == name:
                return judge
        known = f"it has {', '.join(one.name for one in self.judge)}" if self.judge else "it has none; docs/rewards.md"
        raise ConfigError(f"there is no [[judge]] {name!r} in the configuration: {known}")

    @property
    def only_policy(self) -> PolicyConfig:
        """Raises ConfigError: there are several."""
        return self.named_policy(None)

    def named_policy(self, name: str | None) -> PolicyConfig:
        """Return the policy of that name; without a name, the only one.

        Raises:
            ConfigError: there is none, or the name is needed.
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
        raise ConfigError(f"name one of the policies {names}" + ("" if name is None else f"; {name!r} is none"))
