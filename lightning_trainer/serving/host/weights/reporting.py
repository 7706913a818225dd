"""What both kinds of publishers say about a publication, in the same words."""

import logging
import time
from pathlib import Path

from lightning_trainer.serving.publication import Publication, PublicationReport

logger = logging.getLogger(__name__)


def outside(path: Path, weights_directory: Path) -> str | None:
    """Return why a file is not read, or None."""
    if weights_directory not in path.resolve().parents:
        return f"{path} is outside of {weights_directory}, where this engine reads weights"
    return None


def refused(version: int, reason: str | None, started: float) -> PublicationReport:
    """Report that nothing changed; ``version`` is served as before."""
    return PublicationReport(False, version, reason, seconds={"total": time.monotonic() - started})


def log_outcome(publication: Publication, report: PublicationReport) -> None:
    if report.accepted:
        logger.info("serving %s, max |difference| %.3g nats", publication.name, report.max_abs_diff)
    else:
        logger.warning("refused %s, serving version %d: %s", publication.name, report.version, report.reason)
