"""Errors that the client raises on purpose. Only ``init`` and decoration raise; nothing does once the agent runs."""


class InstrumentationError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(InstrumentationError, ValueError):
    """``lt.init`` or the environment says something that cannot be used."""


class UnprovenDaemonError(ConnectionError):
    """What answers there is not known to be the daemon; nothing was sent to it.

    Args:
        sentence: for people.
        passing: the daemon may be there later: a proxy answers for one that is away.
    """

    def __init__(self, sentence: str, *, passing: bool = False) -> None:
        super().__init__(sentence)
        self.passing = passing


class OtherDaemonError(UnprovenDaemonError):
    """It is a daemon, and not the one that this process records for."""
