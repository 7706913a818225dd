"""Which live rollouts a candidate version answers: a share of them, by a hash, and never one in its middle.

A rollout that the live version has answered before the candidate came stays with the live version. Evaluations, and
calls that name no rollout, are the live version's.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

from lightning_instrumentation import semconv

_REMEMBERED = 100_000
"""Rollouts that the live version answered; of older ones nobody is in the middle."""
_KEYS = {"rollout": semconv.ROLLOUT_ID, "task": semconv.TASK_ID, "group": semconv.GROUP_ID}


class CanaryRoute:
    """One policy's; without a candidate every call is the live version's."""

    def __init__(self, policy: str, *, share: float, by: Literal["rollout", "task", "group"]) -> None:
        self._policy = policy
        self._share = share
        self._key = _KEYS[by]
        self._answered: OrderedDict[str, None] = OrderedDict()
        self.version: int | None = None
        """The candidate; None: there is none."""

    def begin(self, version: int) -> None:
        """Let a candidate that is served answer its share from now on."""
        self.version = version

    def end(self) -> None:
        """Let the live version answer everything from now on."""
        self.version = None

    def version_for(self, caller: Mapping[str, str]) -> int | None:
        """Return the candidate where the call is its to answer; ``caller``: who calls, by attribute name."""
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
