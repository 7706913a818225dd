"""One asynchronous face of the trainer, whether it lives in this process or in a Ray actor of its own.

Neither torch nor verl nor Ray is imported before ``start``. A trainer that failed or died raises TrainingError from
every call until ``restart``, which builds it anew from the model folder; going on is then ``load``.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.serving.publication import Publication
from lightning_trainer.training import device
from lightning_trainer.training.on_ray.environ import set_ray_environment
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import StepReport, TrainingBatch

if TYPE_CHECKING:
    from lightning_trainer.training.on_ray.session import RaySession
    from lightning_trainer.training.trainer import Trainer


class TrainerClient(ABC):
    """The trainer of one policy. Calls are answered one at a time, in the order they were made."""

    turns: AbstractAsyncContextManager[object] = nullcontext()
    """Held while it computes, for trainers that share their cores with others."""
    gpu: AbstractAsyncContextManager[object] = nullcontext()
    """Held while it uses a GPU that it shares with an engine."""
    process_id: int | None = None
    """Of the process that trains, where it is one of its own and running."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model; returns when the trainer is ready.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
            MissingExtraError: the packages for training are not installed.
        """

    @abstractmethod
    async def close(self) -> None:
        """Take the trainer down and leave nothing behind; again is the same as once."""

    @abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any: ...

    async def restart(self) -> None:
        """Replace the trainer by a new one at step 0, whatever became of the old one."""
        await self.close()
        async with self.gpu:
            await self.start()

    async def _in_turn(self, method: str, *arguments: Any) -> Any:
        async with self.turns, self.gpu:
            return await self._call(method, *arguments)

    async def step(self, batch: TrainingBatch) -> StepReport:
        async with self.turns:
            began = time.monotonic()
            async with self.gpu:
                lent_s = time.monotonic() - began
                report: StepReport = await self._call("step", batch)
        if isinstance(self.gpu, nullcontext):
            return report
        return replace(report, seconds={**report.seconds, "sleep": lent_s})

    async def publish(self, path: Path, version: int) -> Publication:
        return await self._in_turn("publish", path, version)

    async def save(self, directory: Path, step: int) -> None:
        await self._in_turn("save", directory, step)

    async def load(self, directory: Path) -> int:
        return await self._in_turn("load", directory)

    async def score(self, token_ids: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        return await self._in_turn("score", token_ids)


def make_trainer(backend: Literal["ray", "inprocess"], settings: TrainerSettings) -> TrainerClient:
    """Return a trainer that is not started yet."""
    return make_trainers(backend, [settings])[0]


def make_trainers(
    backend: Literal["ray", "inprocess"],
    settings: Sequence[TrainerSettings],
    *,
    at_once: int = 1,
    gpus: Sequence[str] = (),
    cluster: RayConfig | None = None,
    session: "RaySession | None" = None,
) -> list[TrainerClient]:
    """Return trainers that are not started yet, one for each settings; on Ray they share one session.

    Args:
        at_once: how many of them may compute at the same time; the others wait for their turn.
        gpus: of this machine, that they may use.
        cluster: that they run in, where it has an address.
        session: the connection to the cluster, where others share it (``cluster_session``).
    """
    trainers: list[TrainerClient]
    if backend == "inprocess":
        trainers = [InProcessTrainer(one, gpus) for one in settings]
    else:
        session = session or _session(sum(one.world_size for one in settings), gpus, cluster)
        from lightning_trainer.training.on_ray.trainer import RayTrainer

        if session.cluster is None:
            trainers = [RayTrainer(one, session) for one in settings]
        else:
            from lightning_trainer.training.on_ray.cluster_trainer import ClusterTrainer

            trainers = [ClusterTrainer(one, session, session.cluster) for one in settings]
    if len(trainers) > at_once:
        turns = asyncio.Semaphore(at_once)
        for trainer in trainers:
            trainer.turns = turns
    return trainers


def cluster_session(cluster: RayConfig) -> "RaySession":
    """Return a connection to a cluster, for trainers and engines together; it is joined when the first one starts."""
    return _session(1, (), cluster)


def _session(processes: int, gpus: Sequence[str], cluster: RayConfig | None) -> "RaySession":
    set_ray_environment(cluster=cluster is not None and cluster.address is not None)
    from lightning_trainer.training.on_ray.session import RaySession

    return RaySession(processes, gpus, cluster)


class InProcessTrainer(TrainerClient):
    """The trainer on one thread of this process: no second copy of anything, but a crash takes the daemon along.

    Of several such trainers one computes at a time, their start included: transformers replaces functions of torch
    while it makes a model, verl reads the environment and prints, and random numbers come from one state. All of that
    is the process's.
    """

    _process = threading.Lock()

    def __init__(self, settings: TrainerSettings, gpus: Sequence[str] = ()) -> None:
        self._settings = settings
        self._gpus = gpus
        self._thread: ThreadPoolExecutor | None = None
        self._trainer: Trainer | None = None

    async def start(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        await self._on_thread(self._build)

    async def close(self) -> None:
        thread, self._thread, self._trainer = self._thread, None, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self._trainer is None:
            raise TrainingError("the trainer is not running; start it first")
        return await self._on_thread(getattr(self._trainer, method), *arguments)

    def _build(self) -> None:
        self._trainer = build_trainer(self._settings, self._gpus)

    async def _on_thread(self, function: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._alone, function, *arguments)
        except LightningError:
            raise
        except Exception as error:
            raise TrainingError(f"the trainer failed: {type(error).__name__}: {error}") from error

    def _alone(self, function: Any, *arguments: Any) -> Any:
        with self._process:
            try:
                return function(*arguments)
            finally:
                device.release(self._settings.param_offload)


def build_trainer(settings: TrainerSettings, gpus: Sequence[str] = ()) -> "Trainer":
    """Import verl and build the trainer.

    Args:
        gpus: the only ones that this process sees from now on; without any, those that it sees.

    Raises:
        MissingExtraError: the packages are not installed.
        TrainingError: there is no such device.
    """
    device.choose(settings.device, gpus)
    try:
        device.require()
        from lightning_trainer.training.trainer import Trainer
    except ImportError as error:
        from lightning_trainer.errors import MissingExtraError

        raise MissingExtraError(
            f"training needs packages that are not installed ({error}); pip install 'lightning-trainer[train]'"
        ) from error
    return Trainer(settings)
