"""Which live rollouts a candidate version answers: a share of them, chosen by a hash, and never one already in
progress.

A rollout that the live version answered before the candidate came stays with the live version. So do evaluations, and
calls that name no rollout.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
"""Number of rollouts remembered as answered by the live version; older ones have ended by then."""
_KEYS = {"rollout": semconv.ROLLOUT_ID, "task": semconv.TASK_ID, "group": semconv.GROUP_ID}


class CanaryRoute:
    """One policy's routing between live version and candidate; without a candidate, all calls go to the live one."""

    def __init__(
        self, policy: str, *, share: float, by: Literal["rollout", "task", "group"], shadow: bool = False
    ) -> None:
        """``shadow``: the candidate answers in addition to the live version, not in its place."""
        self._policy = policy
        self._share = share
        self._key = _KEYS[by]
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._shadow = shadow
        self.version: int | None = None
        """The candidate; None if there is none."""
        self.dropped = 0
        """Shadow calls skipped because too many were in flight."""
        self.asked = 0
        """Calls that were the candidate's to answer, in shadow mode too."""
        self.failed = 0
        """Of these, those that the candidate did not answer, and the live version did."""

    def begin(self, version: int) -> None:
        """Start routing a share of calls to a candidate that is served."""
        self.version = version
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
        key = caller.get(self._key)
        if key is None or caller.get(semconv.ROLLOUT_MODE, "train") != "train":
            return None
        if self.version is not None and key not in self._answered and self._is_chosen(key):
            self.asked += 1
            return self.version
        self._remember(key)
        return None

    def stay(self, caller: Mapping[str, str]) -> None:
        """The live version answers in the candidate's place, and the rest of the rollout too; ``caller``: as above."""
        if (key := caller.get(self._key)) is not None:
            self._remember(key)

    def _remember(self, key: str) -> None:
        self._answered[key] = None
        self._answered.move_to_end(key)
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)

    def _is_chosen(self, key: str) -> bool:
        # The version is part of the hash, so the same rollouts do not get every new version first.
        hashed = hashlib.blake2b(f"{self._policy}@v{self.version}/{key}".encode(errors="replace"), digest_size=8)
        return int.from_bytes(hashed.digest()) < self._share * 2**64
