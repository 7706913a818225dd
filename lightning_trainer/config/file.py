"""Reading ``lightning.toml``: an unknown key is refused by name.

Relative paths are relative to the file's folder, and ``~`` is the user's home. A model is a path if it begins like one
(``./``, ``../``, ``/``, ``~``), or if a folder of that name exists.
"""

import os
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from lightning_trainer.config import Config, EngineConfig, PolicyConfig
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.engine import OwnEngineConfig
from lightning_trainer.config.judges import AnyJudge, ProgramConfig
from lightning_trainer.config.policies.stages import StageConfig
from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.config.refusals import sentences
from lightning_trainer.errors import ConfigError

_Engine = TypeVar("_Engine", EngineConfig, OwnEngineConfig)

USUAL_CONFIG = Path("lightning.toml")


def load_usual_config(path: Path | None) -> Config:
    """Read the named configuration; without a name, ``lightning.toml`` if it exists, else the defaults alone: a daemon
    without a policy only records.

    Raises:
        ConfigError: as ``load_config``.
    """
    if path is not None or USUAL_CONFIG.exists():
        return load_config(path or USUAL_CONFIG)
    return _resolve_paths(Config(), Path())


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or a key or value is not allowed; the message names each of them.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        if path == USUAL_CONFIG and isinstance(error, FileNotFoundError):
            raise ConfigError(f"there is no {path} in this folder: name the configuration with --config") from error
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        document = tomllib.loads(data.decode("utf-8-sig"))  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} is not UTF-8 (line {line}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        # The validation error quotes its input, and the input may hold the token.
        raise ConfigError(f"{path}: {sentences(error, document, Config)}") from None
    return _resolve_paths(config, path.parent)


def _resolve_paths(config: Config, base: Path) -> Config:
    places = {name: getattr(config.daemon, name) for name in ("state_dir", "tls_cert", "tls_key")}
    found = {name: _below(base, place) for name, place in places.items() if place is not None}
    daemon = config.daemon.model_copy(update=found)
    engine = _with_template(config.engine, base, "engine")
    if engine.python is not None and engine.placement == "local" and os.sep in engine.python:  # else found on the PATH
        engine = engine.model_copy(update={"python": str(_below(base, Path(engine.python)))})
    policies = tuple(
        policy.model_copy(
            update={
                "model": _model(policy.model, base),
                "engine": _with_template(policy.engine, base, f"policy.{policy.name}.engine"),
                "algorithm": _algorithm(policy.algorithm, base),
                "stage": _stages(policy, base),
                "guard": _guard(policy, base),
            }
        )
        for policy in config.policy
    )
    judges = tuple(_judge(judge, base) for judge in config.judge)
    store = config.store
    folders = {name: getattr(store, name) for name in ("journal", "shared_dir")}
    found = {name: _below(base, folder) for name, folder in folders.items() if folder is not None}
    store = store.model_copy(update=found)
    metrics = config.metrics.model_copy(
        update={"beside": tuple(_below(base, folder) for folder in config.metrics.beside)}
    )
    folder = _below(base, config.environments.folder)
    changed = {
        **{"daemon": daemon, "engine": engine, "store": store, "policy": policies, "judge": judges},
        "metrics": metrics,
        "environments": config.environments.model_copy(update={"folder": folder}),
    }
    return config.model_copy(update=changed)


def _below(base: Path, path: Path) -> Path:
    return (base / os.path.expanduser(path)).absolute()


def _model(named: str, base: Path) -> str:
    """Return the folder that ``named`` means, as an absolute path; ``named`` itself if it means none."""
    folder = _below(base, Path(named))
    return str(folder) if named.startswith(("./", "../")) or folder.is_dir() else named


def _with_template(engine: _Engine, base: Path, section: str) -> _Engine:
    if engine.chat_template is None:
        return engine
    template = _below(base, engine.chat_template)
    if not template.is_file():
        raise ConfigError(f"{section}.chat_template = {str(engine.chat_template)!r}: there is no file {template}")
    return engine.model_copy(update={"chat_template": template})


def _algorithm(algorithm: AlgorithmConfig, base: Path) -> AlgorithmConfig:
    if algorithm.reference_model is None:
        return algorithm
    return algorithm.model_copy(update={"reference_model": _model(algorithm.reference_model, base)})


def _judge(judge: AnyJudge, base: Path) -> AnyJudge:
    if not isinstance(judge, ProgramConfig):
        return judge
    folder = _below(base, judge.working_dir)
    if not folder.is_dir():
        raise ConfigError(f"judge.{judge.name}.working_dir = {str(judge.working_dir)!r}: there is no folder {folder}")
    return judge.model_copy(update={"working_dir": folder})


def _guard(policy: PolicyConfig, base: Path) -> GuardConfig | None:
    if policy.guard is None:
        return None
    folder = _below(base, policy.guard.working_dir)
    if not folder.is_dir():
        given = str(policy.guard.working_dir)
        raise ConfigError(f"policy.{policy.name}.guard.working_dir = {given!r}: there is no folder {folder}")
    return policy.guard.model_copy(update={"working_dir": folder})


def _stages(policy: PolicyConfig, base: Path) -> tuple[StageConfig, ...]:
    found = []
    for stage in policy.stage:
        if stage.data is not None:
            stage = stage.model_copy(update={"data": _below(base, stage.data)})
        if stage.algorithm is not None:
            stage = stage.model_copy(update={"algorithm": _algorithm(stage.algorithm, base)})
        found.append(stage)
    return tuple(found)
