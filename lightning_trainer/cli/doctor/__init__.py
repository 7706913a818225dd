"""``lightning-trainer doctor``: everything that a start needs, looked at before anything heavy starts.

Imports no torch, verl, vllm or ray, starts no engine, downloads nothing: it answers in a second. Exit status 0 if a
start can be expected to work (warnings included), 1 if something has to be mended first.
"""

from pathlib import Path

from lightning_trainer.cli.doctor.check import Check, State, ok, render, summary
from lightning_trainer.cli.doctor.machine import (
    check_cores,
    check_disk,
    check_gpus,
    check_memory,
    check_precision,
    check_schedule,
    check_shared_memory,
)
from lightning_trainer.cli.doctor.model import check_experts, check_model, count_parameters
from lightning_trainer.cli.doctor.packages import check_engine, check_packages, check_python
from lightning_trainer.cli.doctor.places import (
    check_checkpoints,
    check_demonstrations,
    check_guard,
    check_port,
    check_shared_dir,
    check_spool,
    check_state_dir,
    check_store,
    check_tls,
)
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.file import USUAL_CONFIG, load_config

__all__ = ["Check", "State", "doctor", "run_checks"]


def doctor(config_path: Path | None) -> int:
    """Print the checks, with the usual configuration if none is named and it exists, and return the exit status.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    console = TerminalConsole()
    if config_path is None and USUAL_CONFIG.exists():
        config_path = USUAL_CONFIG
    if config_path is None:
        told = ok("configuration", f"none, and no {USUAL_CONFIG} in this folder: checked for the quickstart")
    else:
        told = ok("configuration", str(config_path))
    checks = [told, *run_checks(load_config(config_path) if config_path else None)]
    console.print(render(checks))
    console.print(summary(checks))
    return int(any(check.state is State.FAILURE for check in checks))


def run_checks(config: Config | None) -> list[Check]:
    """Check this machine for what a configuration needs, or what the quickstart needs if there is none."""
    config = config or _quickstart()
    if not config.policy:
        return [check_python(), *check_packages(config), check_cores(config), *_places(config)]
    models = list(dict.fromkeys(policy.model for policy in config.policy))
    parameters = [count_parameters(policy.model) for policy in config.policy]
    trained = [count_parameters(policy.model, policy.lora and policy.lora.rank) for policy in config.policy]
    return [
        check_python(),
        *check_packages(config),
        check_engine(config.engine),
        *map(check_model, models),
        *map(check_experts, models if config.engine.routed_experts is True else ()),
        check_cores(config),
        check_precision(config),
        check_gpus(config),
        *([check_memory(config, parameters)] if config.training.device == "cpu" else []),
        check_shared_memory(config, trained),
        check_disk(config, trained),
        *_places(config),
        *check_checkpoints(config),
        *(check_guard(policy.name, policy.guard) for policy in config.policy if policy.guard is not None),
        *(check for policy in config.policy for check in check_demonstrations(policy)),
        *(check for policy in config.policy for check in check_schedule(config, policy)),
    ]


def _places(config: Config) -> list[Check]:
    """Check what every daemon needs, also one that only records."""
    daemon = config.daemon
    return [
        check_port(daemon.host, daemon.port),
        check_tls(daemon),
        check_state_dir(daemon.state_dir),
        *check_shared_dir(config),
        *check_store(config),
        check_spool(),
    ]


def _quickstart() -> Config:
    policy = PolicyConfig(name="calculator", agents=("calculator",), model="embedded:smollm2-135m-instruct")
    return Config(policy=(policy,))
