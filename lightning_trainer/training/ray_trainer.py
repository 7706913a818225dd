"""The trainer in a Ray actor: a process of its own, whose death is an error and not the end of the daemon."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.training.ray_session import RaySession
from lightning_trainer.training.remote import TrainerClient, build_trainer
from lightning_trainer.training.settings import TrainerSettings


class TrainerActor:
    """What runs in the actor. The trainer is built by a call, so that an error in it arrives as an error."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._trainer: Any = None

    def start(self) -> int:
        """Build the trainer and return the process id."""
        if self._settings.log_dir is not None:
            _write_output_to(self._settings.log_dir / "trainer.log")
        self._trainer = build_trainer(self._settings)
        return os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._trainer, method)(*arguments)


class RayTrainer(TrainerClient):
    """Starts Ray, unless this process uses one already, and the actor in it."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._session = RaySession()
        self._actor: Any = None

    async def start(self) -> None:
        await asyncio.to_thread(self._session.start)
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(TrainerActor).remote(self._settings)
        self.process_id = await self._answer(self._actor.start.remote())

    async def close(self) -> None:
        actor, self._actor, self.process_id = self._actor, None, None
        if actor is not None and ray.is_initialized():
            ray.kill(actor)
        await asyncio.to_thread(self._session.stop)

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            raise TrainingError("the trainer is not running; start it first")
        return await self._answer(self._actor.call.remote(method, *arguments))

    async def _answer(self, reference: Any) -> Any:
        try:
            return await asyncio.wrap_future(reference.future())
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, LightningError):
                raise cause from None
            raise TrainingError(f"the trainer failed: {type(cause).__name__}: {cause}") from error
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise TrainingError(f"the trainer's process died ({type(error).__name__}: {reason}); restart it") from error


def _write_output_to(path: Path) -> None:
    """Append everything that this process prints, native libraries included, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
