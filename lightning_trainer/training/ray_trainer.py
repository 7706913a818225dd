"""The trainer in a Ray actor: a process of its own, whose death is an error and not the end of the daemon.

Ray runs for this one actor, on the loopback interface, in a temporary folder of its own beside any other Ray. ``close``
takes all of it down and waits until every process of it is gone.
"""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError, RayTaskError

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.training.remote import TrainerClient, build_trainer
from lightning_trainer.training.settings import TrainerSettings

_OBJECT_STORE_BYTES = 128 * 2**20
"""Batches and reports only; weights go through files."""
_SHORT_TEMP = Path("/tmp")
"""Ray's sockets live under its folder and a socket's path is limited to 107 bytes."""
_EXIT_TIMEOUT_S = 15.0


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
        self._actor: Any = None
        self._own_folder: Path | None = None
        self.process_id: int | None = None
        """Of the actor, while it is running."""

    async def start(self) -> None:
        await asyncio.to_thread(self._start_ray)
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(TrainerActor).remote(self._settings)
        self.process_id = await self._answer(self._actor.start.remote())

    async def close(self) -> None:
        actor, self._actor, self.process_id = self._actor, None, None
        folder, self._own_folder = self._own_folder, None
        if actor is not None and ray.is_initialized():
            ray.kill(actor)
        if folder is not None:
            await asyncio.to_thread(_stop_ray, folder)

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            raise TrainingError("the trainer is not running; start it first")
        return await self._answer(self._actor.call.remote(method, *arguments))

    async def _answer(self, reference: Any) -> Any:
        try:
            return await asyncio.wrap_future(reference.future())
        except RayTaskError as error:
            if isinstance(error.cause, LightningError):
                raise error.cause from None
            raise TrainingError(f"the trainer failed: {type(error.cause).__name__}: {error.cause}") from error
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise TrainingError(f"the trainer's process died ({type(error).__name__}: {reason}); restart it") from error

    def _start_ray(self) -> None:
        if ray.is_initialized():
            return
        parent = _SHORT_TEMP if _SHORT_TEMP.is_dir() else None
        self._own_folder = Path(tempfile.mkdtemp(prefix="lt-ray-", dir=parent))
        try:
            ray.init(
                address="local",
                num_cpus=1,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                configure_logging=True,
                logging_level=logging.ERROR,  # it warns of the signal handler that it leaves to us
                _node_ip_address="127.0.0.1",
                _temp_dir=str(self._own_folder),
            )
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise TrainingError(f'Ray did not start ({error}); set backend = "inprocess" in [training]') from error


def _stop_ray(folder: Path) -> None:
    processes = _processes_of(folder)
    ray.shutdown()
    _, alive = psutil.wait_procs(processes, timeout=_EXIT_TIMEOUT_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=_EXIT_TIMEOUT_S)
    shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Ray's own processes, which name their folder on the command line, and what those started."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if any(str(folder) in argument for argument in process.cmdline()):
                for member in (process, *process.children(recursive=True)):
                    found[member.pid] = member
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def _write_output_to(path: Path) -> None:
    """Append everything that this process prints, native libraries included, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
