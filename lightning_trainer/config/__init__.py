"""What ``lightning.toml`` may contain: one file per section, every setting with its range; ``file`` reads it.

Nothing here imports torch, so a bad configuration is refused before anything heavy is loaded.
"""

from lightning_trainer.config.daemon import DaemonConfig
from lightning_trainer.config.engine import EngineConfig
from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.config.policies.policy import PolicyConfig, any_agent, matches
from lightning_trainer.config.sections import EnvironmentsConfig, GatewayConfig
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.config.whole import Config

__all__ = [
    "Config",
    "DaemonConfig",
    "EngineConfig",
    "EnvironmentsConfig",
    "GatewayConfig",
    "MetricsConfig",
    "PolicyConfig",
    "TrainingConfig",
    "any_agent",
    "matches",
]
