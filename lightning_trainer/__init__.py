"""lightning-trainer: from OpenTelemetry spans of running agents to better weights, served while they run."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_trainer.dataset.calls import RecordedCall, build_samples

__version__ = "0.1.0"
__all__ = ["RecordedCall", "__version__", "build_samples"]


def __getattr__(name: str) -> Any:
    # An agent's process imports this package too, but has none of the packages that building samples needs.
    if name not in ("RecordedCall", "build_samples"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from lightning_trainer.dataset import calls
    except ModuleNotFoundError as error:
        from lightning_trainer.errors import MissingExtraError

        raise MissingExtraError(
            f'{name} needs {error.name}, which is not installed; run: pip install "lightning-trainer[daemon]"'
        ) from error
    return getattr(calls, name)
