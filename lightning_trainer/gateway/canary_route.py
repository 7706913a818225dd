"""Which live rollouts a candidate version answers: a share of them, by a hash, and never one in its middle.

A rollout that the live version has answered before the candidate came stays with the live version. Evaluations, and
calls that name no rollout, are the live version's.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from lightning_instrumentation import semconv

from lightning_trainer.gateway.engine.upstream import Upstream


class VersionLease(Protocol):
    """An engine that serves one old version, for one call."""

    @property
    def upstream(self) -> Upstream: ...

    def release(self) -> None:
        """The call has ended; once."""
        ...


class OldVersions(Protocol):
    """Where the gateway finds versions that are not the one being served: old ones, and a candidate."""

    def versions(self) -> Sequence[int]:
        """Return those that can be asked for, ascending."""
        ...

    async def lease(self, version: int) -> VersionLease | None:
        """Return where the version is served, or will be soon; None when its weights are not kept.

        Raises:
            EngineError: it cannot be served now.
        """
        ...


_REMEMBERED = 100_000
"""Rollouts that the live version answered; of older ones nobody is in the middle."""
_KEYS = {"rollout": semconv.ROLLOUT_ID, "task": semconv.TASK_ID, "group": semconv.GROUP_ID}


class CanaryRoute:
    """One policy's; without a candidate every call is the live version's."""

    def __init__(
        self, policy: str, *, share: float, by: Literal["rollout", "task", "group"], shadow: bool = False
    ) -> None:
        """``shadow``: a candidate answers beside the live version and not in its place."""
        self._policy = policy
        self._share = share
        self._key = _KEYS[by]
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._shadow = shadow
        self.version: int | None = None
        """The candidate; None: there is none."""
        self.dropped = 0
        """Calls that the candidate was not asked beside the live version, since too many were under way."""
        self.failed = 0
        """Calls that it was asked, and did not answer."""

    def begin(self, version: int) -> None:
        """Let a candidate that is served answer its share from now on."""
        self.version = version
        self.dropped = self.failed = 0

    def end(self) -> None:
        """Let the live version answer everything from now on."""
        self.version = None

    def version_for(self, caller: Mapping[str, str]) -> int | None:
        """Return the candidate where the call is its to answer; ``caller``: who calls, by attribute name."""
        return None if self._shadow else self._candidate_for(caller)

    def shadow_for(self, caller: Mapping[str, str]) -> int | None:
        """Return the candidate where it answers beside the live version; ``caller``: as above."""
        return self._candidate_for(caller) if self._shadow else None

    def _candidate_for(self, caller: Mapping[str, str]) -> int | None:
        key = caller.get(self._key)
        if key is None or caller.get(semconv.ROLLOUT_MODE, "train") != "train":
            return None
        if self.version is not None and key not in self._answered and self._is_chosen(key):
            return self.version
        self._answered[key] = None
        self._answered.move_to_end(key)
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        return None

    def _is_chosen(self, key: str) -> bool:
        # With the version in it, so that not the same rollouts are asked to try everything new.
        hashed = hashlib.blake2b(f"{self._policy}@v{self.version}/{key}".encode(errors="replace"), digest_size=8)
        return int.from_bytes(hashed.digest()) < self._share * 2**64
