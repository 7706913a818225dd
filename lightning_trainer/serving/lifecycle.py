"""The states of a supervised engine, and the supervisor's timeouts and backoff.

Callers that wait for an engine learn at once that it was given up; it is still retried, after growing pauses.
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
    """No call waits for it any longer. Either too many starts in a row failed, and it is retried now and then; or it
    never served (it ended by itself, or was killed ``Backoff.first_attempts`` times), and it is not retried."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The status of a supervised engine."""

    state: EngineState
    pid: int | None
    versions: Mapping[str, int]
    """Live versions by policy; empty while the engine is not ready."""
    restarts: int
    startup_s: float | None
    """Duration of the last start, including weights."""
    last_error: str | None
    retry_at: float | None = field(default=None, kw_only=True)
    """When a failed engine is retried next, in Unix seconds; None while a retry is running, or if there is none."""
    node: str | None = field(default=None, kw_only=True)
    """The address of its cluster node; None if it is on the daemon's machine, or not running."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before restarts. A life that served for ``settled_s`` counts as a success."""

    first_s: float = 1.0
    factor: float = 2.0
    longest_s: float = 30.0
    attempts: int = 5
    first_attempts: int = 3
    """Starts of an engine that is killed each time before it ever served: it may be too large for the memory."""
    settled_s: float = 60.0
    first_rest_s: float = 60.0
    """The pause before an engine that was given up is retried for the first time."""
    longest_rest_s: float = 600.0

    def delay_s(self, failures: int) -> float:
        """Return the delay after that many consecutive failures."""
        given_up = failures - self.attempts
        if given_up > 0:
            return min(self.longest_rest_s, self.first_rest_s * self.factor ** min(given_up - 1, 32))
        return min(self.longest_s, self.first_s * self.factor ** max(0, failures - 1))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Detection of an engine that is alive but does not answer; patient, because a machine may be busy."""

    every_s: float = 10.0
    patience_s: float = 45.0
    missed: int = 3
