"""The ways in which an environment can fail an attempt: one exception for each, and none of them ends the run."""

from lightning_trainer.errors import ConfigError, LightningError


class EnvironmentFailedError(LightningError, RuntimeError):
    """An environment cannot continue; the attempt has failed, and the next one starts in another process."""


class EnvironmentDiedError(EnvironmentFailedError):
    """The environment's process ended; the message has its exit status or signal, and its last output."""


class EnvironmentTimeoutError(EnvironmentFailedError, TimeoutError):
    """The environment did not answer in time and was killed."""


class EnvironmentNonsenseError(EnvironmentFailedError, ValueError):
    """The environment's answer does not follow the protocol, or is longer than allowed."""


class EnvironmentOutOfMemoryError(EnvironmentFailedError, MemoryError):
    """The environment, with the processes that it started, used more memory than allowed and was killed."""


class EnvironmentRaisedError(EnvironmentFailedError):
    """The environment's own code raised; the message names the exception and the line."""


class UnknownEnvironmentError(ConfigError):
    """There is no environment of this name, or its packages are not installed; the message says what to run."""
