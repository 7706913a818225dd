"""Which live rollouts a candidate version answers: a share of them, chosen by a hash, and never one already in
progress.

A rollout that the live version answered before the candidate came stays with the live version. If the rollouts of a
task or group are kept together, the whole task or group stays with it, until it ends. Evaluations and calls that name
no rollout always go to the live version.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from lightning_instrumentation import semconv

from lightning_trainer.gateway.engine.upstream import Upstream


class VersionLease(Protocol):
    """The right to call an engine that serves one old version, for one call."""

    @property
    def upstream(self) -> Upstream:
        """Return the client of the engine that serves the version."""
        ...

    def release(self) -> None:
        """End the lease when the call has ended; call it once."""
        ...


class OldVersions(Protocol):
    """Where the gateway finds versions that are not live: old ones, and a candidate."""

    def versions(self) -> Sequence[int]:
        """Return the versions that can be requested, ascending."""
        ...

    async def lease(self, version: int) -> VersionLease | None:
        """Return a lease on the engine that serves the version, or will soon; None if its weights are not kept.

        Raises:
            EngineError: it cannot be served now.
        """
        ...


_REMEMBERED = 100_000
"""Number of rollouts, and of tasks or groups, remembered as answered by the live version; older ones have ended."""
_IDLE_S = 300.0
"""A task or group without a call for this long has ended; if it comes again, that is another session."""
_LONGEST_SESSION_S = 1800.0
"""Since the candidate came; a task or group that still has calls after this long is one that recurs, not a session."""
_KEYS = {"rollout": semconv.ROLLOUT_ID, "task": semconv.TASK_ID, "group": semconv.GROUP_ID}


class CanaryRoute:
    """One policy's routing between live version and candidate; without a candidate, all calls go to the live one."""

    def __init__(
        self,
        policy: str,
        *,
        share: float,
        by: Literal["rollout", "task", "group"],
        shadow: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            shadow: the candidate answers in addition to the live version, not in its place.
            clock: returns seconds.
        """
        self._policy = policy
        self._share = share
        self._key = _KEYS[by]
        self._shadow = shadow
        self._clock = clock
        self._answered: OrderedDict[str, float] = OrderedDict()
        """Rollouts that the live version answered, with the time of the last call."""
        self._sessions: OrderedDict[str, float] = OrderedDict()
        """The same by task or group, if these are kept together."""
        self._began = 0.0
        self.version: int | None = None
        """The candidate; None if there is none."""
        self.dropped = 0
        """Shadow calls skipped because too many were in flight."""
        self.asked = 0
        """Calls that were the candidate's to answer, in shadow mode too."""
        self.failed = 0
        """Those of them that the candidate did not answer and the live version did."""

    def begin(self, version: int) -> None:
        """Start routing a share of calls to a candidate that is served."""
        self.version, self._began = version, self._clock()
        self.dropped = self.asked = self.failed = 0

    def end(self) -> None:
        """Route all calls to the live version from now on."""
        self.version = None

    def version_for(self, caller: Mapping[str, str]) -> int | None:
        """Return the candidate if it should answer the call, else None; ``caller``: the caller's attributes by name."""
        return None if self._shadow else self._candidate_for(caller)

    def shadow_for(self, caller: Mapping[str, str]) -> int | None:
        """Return the candidate if it should also answer the call, in shadow mode, else None; ``caller``: as above."""
        return self._candidate_for(caller) if self._shadow else None

    def _candidate_for(self, caller: Mapping[str, str]) -> int | None:
        rollout, key = caller.get(semconv.ROLLOUT_ID), caller.get(self._key)
        if rollout is None or key is None or caller.get(semconv.ROLLOUT_MODE, "train") != "train":
            return None
        if self.version is not None and self._is_chosen(key) and not self._is_live(rollout, key):
            self.asked += 1
            return self.version
        self.stay(caller)
        return None

    def stay(self, caller: Mapping[str, str]) -> None:
        """Let the live version answer the call, and the rest of its rollout and session; ``caller``: as above."""
        self._remember(self._answered, caller[semconv.ROLLOUT_ID])
        if self._key != semconv.ROLLOUT_ID:
            self._remember(self._sessions, caller[self._key])

    def _remember(self, seen: OrderedDict[str, float], name: str) -> None:
        seen[name] = self._clock()
        seen.move_to_end(name)
        if len(seen) > _REMEMBERED:
            seen.popitem(last=False)

    def _is_live(self, rollout: str, key: str) -> bool:
        """Whether the rollout began with the live version, or belongs to a session that did and has not ended."""
        if rollout in self._answered:
            return True
        now, last = self._clock(), self._sessions.get(key)
        return last is not None and now - last < _IDLE_S and now - self._began < _LONGEST_SESSION_S

    def _is_chosen(self, key: str) -> bool:
        # The version is part of the hash, so the same rollouts do not get every new version first.
        hashed = hashlib.blake2b(f"{self._policy}@v{self.version}/{key}".encode(errors="replace"), digest_size=8)
        return int.from_bytes(hashed.digest()) < self._share * 2**64
