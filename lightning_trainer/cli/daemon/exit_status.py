"""With what ``lightning-trainer serve`` ends, for whatever starts it again; the numbers are sysexits.h's.

0 after SIGINT or SIGTERM, 130 after a second one. 78: what is configured cannot be run, and another start would end in
the same way. 75: something was not there (a port, the store, an engine), and may be at the next start. 1: a bug.
"""

from lightning_trainer.errors import (
    AddressTakenError,
    ConfigError,
    DatasetError,
    DownloadError,
    LightningError,
    MissingExtraError,
    ModelError,
)

CONFIG = 78
TEMPORARY = 75
_FOR_PEOPLE = (ConfigError, ModelError, MissingExtraError, DatasetError)
_PASSING = (AddressTakenError, DownloadError)


def exit_status(error: LightningError) -> int:
    """Return the status that says whether another start may help."""
    return CONFIG if isinstance(error, _FOR_PEOPLE) and not isinstance(error, _PASSING) else TEMPORARY
