"""Trainers in Ray actors: separate processes, whose death is an error and does not end the daemon.

There are ``world_size`` of them. Each call goes to all, and the first one's result counts (``process_group``). When one
fails, the others would wait for it: they are ended, and a restart rebuilds all of them.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError, RayTaskError

from lightning_trainer.errors import LightningError, TrainerBrokenError, TrainerDiedError, TrainingError
from lightning_trainer.serving.node_files import Elsewhere, NodeFolder
from lightning_trainer.training import device
from lightning_trainer.training.in_process import build_trainers
from lightning_trainer.training.on_ray.cluster import Node, this_node
from lightning_trainer.training.on_ray.hang_detection import Stillness
from lightning_trainer.training.on_ray.session import RaySession
from lightning_trainer.training.process import TrainerProcess
from lightning_trainer.training.settings import TrainerSettings

_LOOK_EVERY_S = 1.0
"""How often to check that Ray and the processes are still alive."""
_OTHERS_S = 10.0
"""After the first error, how long the other processes may take to end their call."""


def reference_of(policy: str) -> str:
    """Return the name of the policy's reference model below a node's folder."""
    return f"reference/{policy}"


class TrainerActor:
    """The actor. Trainers are built by calls, so that an error in them arrives as an error."""

    def __init__(self, settings: Sequence[TrainerSettings], rank: int) -> None:
        self._settings, self._rank = settings, rank
        self._common = settings[0]
        self._host: Any = None
        self._trainers: Any = None
        self._folder: NodeFolder | None = None

    def process_id(self) -> int:
        """Return the process id; called first, so that callers waiting for the rest can check that the process runs."""
        return os.getpid()

    def describe(self) -> Node:
        """Describe the node and the process that the actor runs in."""
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
        return replace(this_node(os.getpid()), gpus=tuple(map(str, gpus)))

    def settle(self, folder: Path) -> None:
        """On a node other than the daemon's, use this folder for everything that this process reads and writes.

        Args:
            folder: of the first process on the node, which all there share: they start and end together.
        """
        self._folder = NodeFolder(folder)
        path = self._folder.path
        self._settings = [
            replace(
                one,
                model_dir=path("model"),
                reference_dir=one.reference_dir and path(reference_of(one.policy)),
                log_dir=path("logs"),
            )
            for one in self._settings
        ]
        self._common = self._settings[0]

    def on_node(self, method: str, *arguments: Any) -> Any:
        """Call a method of this node's folder."""
        return getattr(self._node_folder(), method)(*arguments)

    def _node_folder(self) -> NodeFolder:
        if self._folder is None:
            self._folder = NodeFolder()
        return self._folder

    def meet(self) -> Any:
        """Return, in the first process, the address where the others join the group."""
        from lightning_trainer.training.process_group import Host

        self._host = Host(ray.util.get_node_ip_address(), self._common.training.world_size)
        return self._host.meeting

    def start(self, meeting: Any = None) -> None:
        """Load what the policies share.

        Args:
            meeting: the group's address; None if this process is the whole group.
        """
        common = self._common
        if common.log_dir is not None:
            _write_output_to(common.log_dir / "trainer.log")
        device.choose(common.training.device)
        if meeting is not None:
            from lightning_trainer.training.process_group import join

            join(meeting, self._rank, common.training.world_size, self._host)
        with device.settings_named_without_memory(common):
            self._trainers = build_trainers(self._settings)
        device.release(bool(common.training.param_offload))

    def ask(self, what: str, policy: str, *given: Any) -> Any:
        """Open or drop a policy in ``Trainers``, or call a method of its trainer."""
        arguments = [self._path(one) if isinstance(one, Elsewhere) else one for one in given]
        try:
            with device.settings_named_without_memory(self._common):
                result = getattr(self._trainers, what)(policy, *arguments)
        finally:
            device.release(bool(self._common.training.param_offload))
        return result if self._rank == 0 and what == "call" else None

    def _path(self, of: Elsewhere) -> Path:
        if self._folder is None:
            return of.path
        path = self._folder.path(of.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class RayProcess(TrainerProcess):
    """Starts Ray, unless this process already uses one, and the actors in it."""

    def __init__(self, settings: Sequence[TrainerSettings], session: RaySession | None = None) -> None:
        """``session``: shared with other trainers; by default a new one."""
        super().__init__(settings)
        self._session = session or RaySession(self._common.training.world_size)
        self._holds_session = False
        self._starting: asyncio.Future[None] | None = None
        self._actors: list[Any] = []
        self.process_ids: tuple[int, ...] = ()
        """Of all training processes, by rank; ``process_id`` is the first."""
        self._processes: list[psutil.Process] = []
        self._stillness = Stillness()

    async def _start(self) -> None:
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._session.start))
        await self._started(self._starting)
        starting, self._starting = self._starting, None
        starting.result()
        self._holds_session = True
        common = self._common
        actor: Any = ray.remote(num_cpus=1, num_gpus=common.gpus_per_process, max_restarts=0)(TrainerActor)
        places = await self._places()
        self._actors = [actor.options(**place).remote(self._settings, rank) for rank, place in enumerate(places)]
        started = tuple(await self._answers([actor.process_id.remote() for actor in self._actors]))
        self._processes = list(_running(started)) if self._session.is_own else []
        await self._settle()
        meeting = ()
        if common.training.world_size > 1:
            meeting = await self._answers([self._actors[0].meet.remote()])
        await self._answers([actor.start.remote(*meeting) for actor in self._actors])
        self.process_ids, self.process_id = started, started[0]

    async def _started(self, starting: asyncio.Future[None]) -> None:
        """Wait until Ray has started or failed to start."""
        while not starting.done():
            await asyncio.wait({starting}, timeout=_LOOK_EVERY_S)
            self._session.look_after_start()

    async def _places(self) -> Sequence[Mapping[str, Any]]:
        """Return the placement options of each process's actor."""
        return [{}] * self._common.training.world_size

    async def _settle(self) -> None:
        """Make sure that the processes have what they need on their nodes."""

    async def _end(self) -> None:
        self._kill()
        self._actors, self._processes, self.process_id, self.process_ids = [], [], None, ()
        if self._starting is not None:  # the waiting task was canceled; the thread was not
            await self._started(self._starting)
            self._holds_session = self._starting.exception() is None
            self._starting = None
        if self._holds_session:
            self._holds_session = False
            await asyncio.to_thread(self._session.stop)

    def _kill(self) -> None:
        if ray.is_initialized():
            for actor in self._actors:
                with contextlib.suppress(RayError, ValueError):  # Ray may have died since
                    ray.kill(actor)

    async def _asked(self, what: str, policy: str, *arguments: Any) -> Any:
        if not self._actors:
            raise TrainingError("the trainer is not running; start it first")
        answers = await self._answers(await self._sent(what, policy, *arguments))
        return answers[0]

    async def _sent(self, *arguments: Any) -> Sequence[Any]:
        """Send a call to all of them, from a thread: a batch goes through one of Ray's servers, which may hang."""

        def ask() -> list[Any]:
            # The batch is put into Ray's store once instead of being sent to each process.
            shared = [ray.put(argument) for argument in arguments] if len(self._actors) > 1 else arguments
            return [actor.ask.remote(*shared) for actor in self._actors]

        asked = asyncio.ensure_future(asyncio.to_thread(ask))
        while not asked.done():
            await asyncio.wait({asked}, timeout=_LOOK_EVERY_S)
            if not asked.done():
                self._see_that_they_live()
        try:
            return asked.result()
        except (RayError, OSError, ValueError) as error:
            raise TrainerDiedError(f"the trainer's process cannot be asked ({error}); restart it") from error

    def _see_that_they_live(self) -> None:
        """Resume a stopped process, and kill one that hangs. Raises TrainerDiedError if one died."""
        if not self._session.lives:
            gone = "a server of Ray died with it" if self._session.is_own else "the head of its Ray cluster is gone"
            raise TrainerDiedError(f"the trainer's process died ({gone}); restart it")
        for process in self._stillness.end_what_hangs(self._processes):
            raise TrainerDiedError(f"the trainer's process {process.pid} hung and was killed; restart it")

    async def _answers(self, references: Sequence[Any]) -> list[Any]:
        """Return what the processes answer, in their order. When some fail and others do not, all are killed.

        Raises:
            LightningError: the first cause, as the trainer raised it.
            TrainerBrokenError: it raised another error.
            TrainerDiedError: a process died or hung, or Ray did.
        """
        calls = [asyncio.ensure_future(asyncio.wrap_future(reference.future())) for reference in references]
        await self._wait(calls)
        errors = [error for call in calls if call.done() and (error := call.exception())]
        if errors and len(errors) < len(calls):
            self._kill()
            for call in calls:
                call.cancel()  # those that still wait; it does nothing to the others
        if errors:
            raise _as_training_error(_first_cause(errors)) from None
        return [call.result() for call in calls]

    async def _wait(self, calls: Sequence[asyncio.Future[Any]]) -> None:
        """Wait until all have ended; from the first error on, ``_OTHERS_S`` for the others.

        Raises:
            TrainerDiedError: a process died or hung, or Ray did; what still waited is canceled.
        """
        done, waiting = set(), set(calls)
        while waiting and not any(call.exception() for call in done):
            done, waiting = await asyncio.wait(calls, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                try:
                    self._see_that_they_live()
                except TrainerDiedError:
                    for call in waiting:
                        call.cancel()
                    raise
        if waiting:
            await asyncio.wait(waiting, timeout=_OTHERS_S)


def _running(process_ids: Sequence[int]) -> Iterator[psutil.Process]:
    """Return the processes that have not ended."""
    for process_id in process_ids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(process_id)


def _first_cause(errors: Sequence[BaseException]) -> BaseException:
    """Return the error to report for the group: the death of one process also breaks the others' connections."""
    return next((error for error in errors if not isinstance(error, RayTaskError)), errors[0])


def _as_training_error(error: BaseException) -> BaseException:
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, LightningError):
            return cause
        told = TrainerBrokenError(f"the trainer failed: {type(cause).__name__}: {cause}")
    elif isinstance(error, RayError):
        reason = str(error).strip().splitlines()[0]
        told = TrainerDiedError(f"the trainer's process died ({type(error).__name__}: {reason}); restart it")
    else:
        return error
    told.__cause__ = error
    return told


def _write_output_to(path: Path) -> None:
    """Redirect all output of this process, including native libraries', to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
