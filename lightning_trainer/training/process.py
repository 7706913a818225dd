"""The training process, this one or a separate one: for one policy, or for several whose adapters share one base.

Opening the first policy starts it, and closing the last one ends it. A policy that is opened again, because its trainer
failed or must start over, is rebuilt next to the others. If the process has died, or failed in an unforeseen way, it is
replaced as a whole: every other policy learns of this at its next call, and resumes from its own checkpoint.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lightning_trainer.errors import TrainerBrokenError, TrainerDiedError, TrainingError
from lightning_trainer.training.settings import TrainerSettings


class TrainerProcess(ABC):
    """The interface to the training process; calls of all policies are answered one at a time."""

    process_id: int | None = None
    """Id of the training process, if it is a separate one and running."""

    def __init__(self, settings: Sequence[TrainerSettings]) -> None:
        """``settings``: one for each policy; those for the base are equal in all."""
        self._settings = tuple(settings)
        self._common = self._settings[0]
        self.computing = asyncio.Lock()
        """Held around each call."""
        self._changing = asyncio.Lock()
        self._open: set[str] = set()
        self._lost: dict[str, str] = {}
        """The reason, for policies whose weights were lost with a process."""
        self._unneeded: list[str] = []
        """Policies that were closed but not yet dropped by the process."""

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(one.policy for one in self._settings)

    def holds(self, policy: str) -> bool:
        """Whether the policy's weights are loaded."""
        return policy in self._open

    async def open(self, policy: str) -> None:
        """Build the policy's trainer at step 0, whatever happened to an earlier one.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
            TrainerDiedError: the process ended meanwhile.
            MissingExtraError: the packages for training are not installed.
        """
        async with self._changing:
            self._open.discard(policy)
            if self._open:
                with contextlib.suppress(TrainerDiedError, TrainerBrokenError):  # it is replaced next
                    return await self._build(policy)
            await self._end()
            await self._start()
            await self._build(policy)

    async def close(self, policy: str) -> None:
        """Stop training the policy; idempotent."""
        async with self._changing:
            self._lost.pop(policy, None)
            held = self.holds(policy)
            self._open.discard(policy)
            if not self._open:
                await self._end()
            elif held:
                self._unneeded.append(policy)

    async def call(self, policy: str, method: str, *arguments: Any) -> Any:
        """Call a method of the policy's trainer; ``computing`` must be held.

        Raises:
            TrainingError: the trainer failed, or is not open.
        """
        if policy in self._lost:
            raise TrainerDiedError(self._lost[policy])
        if policy not in self._open:
            raise TrainingError("the trainer is not running; start it first")
        while self._unneeded:
            if (closed := self._unneeded.pop()) not in self._open:
                await self._ask("drop", closed)
        return await self._ask("call", policy, method, *arguments)

    async def _build(self, policy: str) -> None:
        async with self.computing:
            await self._ask("open", policy)
        self._open.add(policy)
        self._lost.pop(policy, None)

    @abstractmethod
    async def _start(self) -> None:
        """Prepare to open policies; what they share is loaded."""

    @abstractmethod
    async def _end(self) -> None:
        """Clean up completely; idempotent."""

    @abstractmethod
    async def _asked(self, what: str, policy: str, *arguments: Any) -> Any:
        """Call a method of the process's ``Trainers``."""

    async def _ask(self, what: str, policy: str, *arguments: Any) -> Any:
        try:
            return await self._asked(what, policy, *arguments)
        except (TrainerDiedError, TrainerBrokenError) as error:
            reason = f"the process that trains {', '.join(self.policies)} has to be replaced ({error}); restart it"
            self._lost |= dict.fromkeys(self._open - {policy}, reason)
            self._lost[policy] = str(error)
            self._open.clear()
            self._unneeded.clear()
            raise
