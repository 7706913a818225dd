"""Errors that the client raises on purpose. Of these, an agent's program gets only those of ``init``; recording never
raises any."""


class InstrumentationError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(InstrumentationError, ValueError):
    """An argument of ``lt.init`` or an environment variable is invalid."""


class UnprovenDaemonError(ConnectionError):
    """The process that answers is not known to be the daemon; nothing was sent to it.

    Args:
        sentence: for display.
        passing: whether the daemon may come back, because a proxy may have answered for a daemon that is down.
        other_token: whether a daemon answered that has another token, or none.
    """

    def __init__(self, sentence: str, *, passing: bool = False, other_token: bool = False) -> None:
        super().__init__(sentence)
        self.passing = passing
        self.other_token = other_token


class OtherDaemonError(UnprovenDaemonError):
    """The process that answers is a daemon, but not the one that this process records for."""
