"""What trains: this process or others, for one policy, or for several whose adapters share one base.

The first policy that is opened starts it and the last that is closed ends it. A policy that is opened again, because
its trainer failed or is to begin anew, is built anew beside the others. But where the process has died, or failed in a
way that nobody has thought of, it is replaced as a whole: then every other policy hears so from its next call, and goes
on from its own checkpoint.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lightning_trainer.errors import TrainerBrokenError, TrainerDiedError, TrainingError
from lightning_trainer.training.settings import TrainerSettings


class TrainerProcess(ABC):
    """Calls of all policies are answered one at a time."""

    process_id: int | None = None
    """Of the process that trains, where it is one of its own and running."""

    def __init__(self, settings: Sequence[TrainerSettings]) -> None:
        """
        Args:
            settings: one for each policy; what concerns the base is alike in all.
        """
        self._settings = tuple(settings)
        self._common = self._settings[0]
        self.computing = asyncio.Lock()
        """Held around each call."""
        self._changing = asyncio.Lock()
        self._open: set[str] = set()
        self._lost: dict[str, str] = {}
        """Why, of policies whose weights went with a process."""
        self._unneeded: list[str] = []
        """Policies that were closed and that the process has not yet forgotten."""

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(one.policy for one in self._settings)

    def holds(self, policy: str) -> bool:
        """Whether the policy's weights are there."""
        return policy in self._open

    async def open(self, policy: str) -> None:
        """Have the policy's trainer at step 0, whatever became of an earlier one.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
            TrainerDiedError: it ended meanwhile.
            MissingExtraError: the packages for training are not installed.
        """
        async with self._changing:
            self._open.discard(policy)
            if self._open:
                with contextlib.suppress(TrainerDiedError, TrainerBrokenError):  # now it is to be replaced
                    return await self._build(policy)
            await self._end()
            await self._start()
            await self._build(policy)

    async def close(self, policy: str) -> None:
        """The policy is not trained any longer; again is the same as once."""
        async with self._changing:
            self._lost.pop(policy, None)
            self._open.discard(policy)
            if self._open:
                self._unneeded.append(policy)
            else:
                await self._end()

    async def call(self, policy: str, method: str, *arguments: Any) -> Any:
        """Call a method of the policy's trainer, while ``computing`` is held.

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
        """Get ready to open policies; what they share is loaded."""

    @abstractmethod
    async def _end(self) -> None:
        """Leave nothing behind; again is the same as once."""

    @abstractmethod
    async def _asked(self, what: str, policy: str, *arguments: Any) -> Any:
        """Ask the process's ``Trainers``."""

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
