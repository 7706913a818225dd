"""Tasks with checkable answers, generated from what an environment offers."""

from lightning_trainer.environments.scenarios.chains import Chain, Link, Scenario, make_scenarios
from lightning_trainer.environments.scenarios.demonstrations import demonstrations
from lightning_trainer.environments.scenarios.exploring import Found, explore

__all__ = ["Chain", "Found", "Link", "Scenario", "demonstrations", "explore", "make_scenarios"]
