"""Whose turn it is to train a policy if several daemons share a store; a daemon with a store of its own always has it.

The turn is renewed alongside the loop, which may be in the middle of a step: a daemon that falls silent loses the turn,
and the store refuses what that daemon then writes of the policy (``store/postgres/turns.py``).
"""

import asyncio
import logging

from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.forwarding import Forwarding
from lightning_trainer.errors import StoreError
from lightning_trainer.store.store import Store

_log = logging.getLogger(__name__)
_RENEWED = 4.0
"""How often a turn is renewed within the seconds that it lasts."""


class Turn:
    """The right to train one policy, held by one of the daemons that share a store."""

    def __init__(self, policy: str, *, store: Store, holder: str, rollbacks: RollbackRequests) -> None:
        """
        Args:
            holder: the daemon's URL, for people.
            rollbacks: woken when the turn is lost.
        """
        self._policy = policy
        self._store = store
        self._holder = holder
        self._rollbacks = rollbacks
        self._forwarding = Forwarding(policy, store=store, url=holder, rollbacks=rollbacks)
        self.ours = not store.shared
        self.other: str | None = None
        """Who had the turn when it was last asked for; None: no other daemon."""

    async def take(self) -> bool:
        """Take the turn if no other daemon has it; return whether it is ours."""
        self.other = await self._store.take_turn(self._policy, self._holder)
        if self.other is None:
            await self._forwarding.read_pause()
            self.ours = True
        return self.ours

    def lose(self) -> None:
        """Note that the turn is another daemon's; the loop looks at that before anything else."""
        if self._store.shared and self.ours:
            self.ours = False
            _log.warning("another daemon trains %s now; this one records and serves", self._policy)
            self._rollbacks.look_again()

    async def keep(self, turn_s: float) -> None:
        """Renew the turn while it is ours, and pass what people ask to the daemon that has it, until cancelled."""
        if not self._store.shared:
            return
        async with asyncio.TaskGroup() as both:
            both.create_task(self._renew(turn_s))
            both.create_task(self._forwarding.listen(turn_s, ours=lambda: self.ours))

    async def _renew(self, turn_s: float) -> None:
        while True:
            await asyncio.sleep(turn_s / _RENEWED)
            if not self.ours:
                continue
            try:
                if not await self._store.renew_turn(self._policy):
                    self.lose()
            except StoreError as error:  # it may still be ours: the store says so when it is up again
                _log.warning("the turn to train %s could not be renewed: %s", self._policy, error)

    async def give_up(self) -> None:
        """Give the turn up when the daemon ends."""
        if not (self._store.shared and self.ours):
            return
        self.ours = False
        try:
            await self._store.give_up_turn(self._policy)
        except StoreError as error:
            _log.warning("the turn to train %s ends by itself: %s", self._policy, error)
