"""Names of GPUs: a GPU may be named by its number or by its UUID, and both names mean one GPU."""

from collections.abc import Sequence

from lightning_trainer.config import Config
from lightning_trainer.config.hardware import comparable
from lightning_trainer.errors import ConfigError


def each_by_one_name(config: Config, there: tuple[str, ...]) -> tuple[Config, tuple[str, ...]]:
    """Return configuration and GPUs with one name for each GPU, whether it was named by number or by UUID."""
    training, engine = config.training, config.engine
    names = comparable({*there, *(training.gpus or ()), *(engine.gpus or ())})

    def named(gpus: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return gpus and tuple(names[gpu] for gpu in gpus)

    sections = {
        "training": training.model_copy(update={"gpus": named(training.gpus)}),
        "engine": engine.model_copy(update={"gpus": named(engine.gpus)}),
    }
    return config.model_copy(update=sections), named(there) or ()


def listed(gpus: Sequence[str]) -> str:
    """Return the GPUs as part of a sentence that says that there are too few."""
    return f"only GPU {', '.join(gpus)}" if gpus else "none"


def require_there(section: str, named: Sequence[str] | None, there: Sequence[str]) -> None:
    """Check that there is a GPU with every number that a section names. Raises ConfigError: one is missing."""
    if missing := [gpu for gpu in named or () if gpu.isdigit() and gpu not in there]:
        raise ConfigError(f"[{section}] gpus names {missing[0]} and there is {listed(there)}; correct it")


def require_known(
    section: str, named: Sequence[str] | None, other: str, others: Sequence[str] | None, there: Sequence[str]
) -> None:
    """Check that the other section, if it names no GPUs, is not dealt one of this section's by another name.

    Raises:
        ConfigError: it may be.
    """
    if others is None and (unknown := [gpu for gpu in named or () if gpu not in there]):
        raise ConfigError(
            f"[{section}] gpus names {unknown[0]}, and which of GPU {', '.join(there)} that is cannot be told, so "
            f"[{other}] may get the same one; name those of both sections"
        )
