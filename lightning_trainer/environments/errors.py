"""How an environment fails an attempt: each way has a name, and none of them ends the run."""

from lightning_trainer.errors import ConfigError, LightningError


class EnvironmentFailedError(LightningError, RuntimeError):
    """An environment could not go on; the attempt has failed and the next one starts with another process."""


class EnvironmentDiedError(EnvironmentFailedError):
    """Its process ended; the message has the exit status or signal, and what it said last."""


class EnvironmentTimeoutError(EnvironmentFailedError, TimeoutError):
    """It did not answer in time and was killed."""


class EnvironmentNonsenseError(EnvironmentFailedError, ValueError):
    """What it answered is not what the protocol says, or is longer than allowed."""


class EnvironmentOutOfMemoryError(EnvironmentFailedError, MemoryError):
    """It, or what it started, held more memory than allowed and was killed."""


class EnvironmentRaisedError(EnvironmentFailedError):
    """Its own code raised; the message names the exception and the line."""


class UnknownEnvironmentError(ConfigError):
    """There is no environment of this name, or its packages are not installed; the message says what to type."""
