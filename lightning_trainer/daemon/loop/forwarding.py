"""Passing on, through the store, what people ask of any daemon of a shared store to the one that trains the policy.

No daemon talks to another one: they do not know each other's addresses, tokens and certificates. In the store, a pause
is a row, and a dropped step a change that is counted, as are spans and dropped attempts, which a step may wait for. A
rollback or a promotion is a request that the daemon whose turn it is carries out and answers
(``store/postgres/requests.py``), as if it had been asked itself.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.errors import LightningError, RollbackError, StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres import requests, turns
from lightning_trainer.store.postgres.requests import Answer, Request
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import pauses, spans
from lightning_trainer.store.worklist import drops

_log = logging.getLogger(__name__)
_LOOK_S = 1.0
"""Longest time between two looks at the store."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What the store says at one moment."""

    paused: str | None
    dropped_steps: int
    grown: tuple[int, int]
    """The number of the last span, and how many attempts were dropped."""
    request: Request | None


class Forwarding:
    """Passes on what people ask of one policy, in one daemon."""

    def __init__(self, policy: str, *, store: Store, url: str, rollbacks: RollbackRequests) -> None:
        """
        Args:
            url: of this daemon, for people.
            rollbacks: what is asked of this daemon, and what its loop hears of.
        """
        self._policy = policy
        self._store = store
        self._url = url
        self._rollbacks = rollbacks
        self._dropped_steps: int | None = None
        """The count at the last look at the store."""
        self._grown: tuple[int, int] | None = None
        self._passed_on: str | None = None
        """Id of the request of ours that may be in the store."""
        self._carried_out: tuple[str, asyncio.Task[Answer]] | None = None
        """The request of another daemon that was begun last."""

    async def look(self, *, ours: bool, lasts_s: float) -> None:
        """Look once: hear of pauses and drops, and pass a request on, or carry one out.

        Args:
            ours: whether this daemon trains the policy.
            lasts_s: for how long a request that is passed on lasts from now.

        Raises:
            StoreError: the store could not be read or written; the next look goes on from there.
        """
        asked = self._rollbacks.pending
        if self._passed_on is not None and (ours or asked is None or asked.id != self._passed_on):
            await self._withdraw(self._passed_on)
        heard = await self._store.scan(self._hear)
        if heard.paused != self._rollbacks.paused:
            self._rollbacks.paused = heard.paused
            self._rollbacks.look_at_pause()
        before, self._dropped_steps = self._dropped_steps, heard.dropped_steps
        if ours and before not in (None, heard.dropped_steps):
            self._rollbacks.look_again()
        grown, self._grown = self._grown, heard.grown
        if ours and grown not in (None, heard.grown):
            self._rollbacks.wake()
        if not ours:
            await self._pass_on(lasts_s)
        elif heard.request is not None:
            await self._carry_out(heard.request)

    async def end(self) -> None:
        """Stop waiting for the request that is being carried out."""
        if self._carried_out is not None:
            self._carried_out[1].cancel()
            await asyncio.wait({self._carried_out[1]})

    async def read_pause(self) -> None:
        """Hear of a pause at once, before anything is trained."""
        self._rollbacks.paused = await self._store.scan(lambda connection: pauses.reason_of(connection, self._policy))

    async def listen(self, turn_s: float, *, ours: Callable[[], bool]) -> None:
        """Look until cancelled."""
        try:
            while True:
                try:
                    await self.look(ours=ours(), lasts_s=turn_s)
                except StoreError as error:
                    _log.warning("what other daemons were asked of %s could not be read: %s", self._policy, error)
                await asyncio.sleep(min(_LOOK_S, turn_s / 4))
        finally:
            await self.end()

    def _hear(self, connection: Connection) -> _Heard:
        return _Heard(
            pauses.reason_of(connection, self._policy),
            turns.dropped_steps(connection, self._policy),
            (spans.last(connection), drops.count(connection)),
            requests.waiting(connection, self._policy),
        )

    async def _pass_on(self, lasts_s: float) -> None:
        asked = self._rollbacks.pending
        if asked is None:
            return
        if asked.recorded:  # the daemon that trains goes to that version
            return self._rollbacks.end()
        request = Request(asked.id, asked.version, asked.promote, self._url)
        self._passed_on = request.id  # even if it is not known whether it was written
        try:
            answer = await self._store.write(lambda store: requests.put(store, self._policy, request, lasts_s))
        except RollbackError as error:
            answer = Answer(str(error), refused=True)
        if answer is not None:
            self._passed_on = None
            if self._rollbacks.pending is asked:
                self._rollbacks.end(answer.error)

    async def _carry_out(self, request: Request) -> None:
        """Begin the request if it was not begun yet, and answer it when it has ended."""
        if self._carried_out is None or self._carried_out[0] != request.id:
            self._carried_out = request.id, asyncio.create_task(self._ask(request), name=f"asked of {request.asked_of}")
            return
        task = self._carried_out[1]
        if task.done():
            answer = task.result()
            await self._store.write_in_turn(
                self._policy, lambda store: requests.answer(store, self._policy, request.id, answer)
            )

    async def _ask(self, request: Request) -> Answer:
        try:
            await self._rollbacks.ask(request.version, promote=request.promote)
        except LightningError as error:
            return Answer(str(error), refused=isinstance(error, RollbackError))
        return Answer()

    async def _withdraw(self, identifier: str) -> None:
        await self._store.write(lambda connection: requests.withdraw(connection, self._policy, identifier))
        self._passed_on = None
