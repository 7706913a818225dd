"""A trainer that is killed while it starts is replaced, one that says what is wrong is not; at the end the daemon keeps
its turn until the last checkpoint is written.
"""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from lightning_trainer.daemon.policy_runtime import PolicyRuntime, start_trainer
from lightning_trainer.errors import TrainerDiedError, TrainingError


class Starting:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.restarts = 0
        self.gpu = nullcontext()

    async def start(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def restart(self) -> None:
        self.restarts += 1
        await self.start()


async def test_one_that_was_killed_is_replaced_and_said():
    trainer, said = Starting(TrainerDiedError("its process died")), []
    await start_trainer(trainer, said.append, first_wait_s=0.0)  # pyright: ignore[reportArgumentType]
    assert trainer.restarts == 1
    assert "its process died" in said[0]


async def test_one_that_does_not_live_for_long_is_waited_for():
    """Ray's servers on a busy machine: the daemon serves and records until they are there."""
    trainer, said = Starting(*[TrainerDiedError("Ray did not start")] * 7), []
    await start_trainer(trainer, said.append, first_wait_s=0.0)  # pyright: ignore[reportArgumentType]
    assert (trainer.restarts, len(said)) == (7, 7)


async def test_one_that_says_what_is_wrong_is_not():
    trainer = Starting(TrainingError("the model has no layers"))
    with pytest.raises(TrainingError, match="no layers"):
        await start_trainer(trainer, print)  # pyright: ignore[reportArgumentType]
    assert trainer.restarts == 0


async def test_the_turn_is_kept_while_the_last_checkpoint_is_written():
    """Before: another daemon took over meanwhile, and went on from the checkpoint before."""
    seen: list[str] = []

    class Turn:
        async def keep(self, turn_s: float) -> None:
            seen.append(f"renewed every {turn_s / 4:g} s")
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("not renewed any more")

    class Loop:
        async def save(self) -> None:
            await asyncio.sleep(0.01)
            seen.append("saved")

    runtime: Any = object.__new__(PolicyRuntime)
    runtime._loop, runtime._turn, runtime._turn_s = Loop(), Turn(), 8.0
    await runtime.save()
    assert seen == ["renewed every 2 s", "saved", "not renewed any more"]
