"""What ``lightning.toml`` may say: a file a section, every setting with its range; ``file`` reads it.

Free of torch, so that a configuration is refused before anything heavy is loaded.
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
