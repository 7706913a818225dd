"""The states of a supervised engine, and how patient its supervisor is with one that dies, or is silent.

Whoever waits for an engine hears at once that it was given up; it is tried again all the same, after growing pauses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EngineState(StrEnum):
    """stopped -> starting -> ready -> restarting -> ready ... -> failed -> ready ..., or stopped from any of them."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """Nobody waits for it any longer: too many starts in a row failed, and it is tried again now and then; or the first
    one did, of itself, and it is not."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    state: EngineState
    pid: int | None
    versions: Mapping[str, int]
    """The live ones by policy; none while the engine is not ready."""
    restarts: int
    startup_s: float | None
    """Of the last start, weights included."""
    last_error: str | None
    retry_at: float | None = field(default=None, kw_only=True)
    """When one that has failed is tried again, in Unix seconds; None where it is being tried, or is not."""
    node: str | None = field(default=None, kw_only=True)
    """The address of the cluster's node that it is on; None where that is the daemon's machine, or nowhere."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before restarts. A start that lasted ``settled_s`` counts as a success."""

    first_s: float = 1.0
    factor: float = 2.0
    longest_s: float = 30.0
    attempts: int = 5
    first_attempts: int = 3
    """Of an engine that never ran and was killed each time: it may be too large for the memory."""
    settled_s: float = 60.0
    first_rest_s: float = 60.0
    """Before one that was given up is tried again."""
    longest_rest_s: float = 600.0

    def delay_s(self, failures: int) -> float:
        """Return how long to wait after that many failures in a row."""
        given_up = failures - self.attempts
        if given_up > 0:
            return min(self.longest_rest_s, self.first_rest_s * self.factor ** min(given_up - 1, 32))
        return min(self.longest_s, self.first_s * self.factor ** max(0, failures - 1))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How an engine is found out that lives and answers nobody; patient, since a machine may be busy."""

    every_s: float = 10.0
    patience_s: float = 45.0
    missed: int = 3
