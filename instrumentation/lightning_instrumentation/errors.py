"""Errors that the client raises on purpose. Only ``init`` and decorators raise; nothing does once the agent runs."""


class InstrumentationError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(InstrumentationError, ValueError):
    """An argument of ``lt.init`` or an environment variable is invalid."""


class UnprovenDaemonError(ConnectionError):
    """The process that answers is not known to be the daemon; nothing was sent to it.

    Args:
        sentence: for display.
        passing: the daemon may come back: a proxy answers for one that is down.
        other_token: it is a daemon, whose token is another, or which has none.
    """

    def __init__(self, sentence: str, *, passing: bool = False, other_token: bool = False) -> None:
        super().__init__(sentence)
        self.passing = passing
        self.other_token = other_token


class OtherDaemonError(UnprovenDaemonError):
    """It is a daemon, but not the one that this process records for."""
