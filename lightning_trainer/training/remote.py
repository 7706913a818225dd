"""The asynchronous client of each policy's trainer, in this process or in Ray actors, alone or shared.

torch, verl, and Ray are imported only by ``start``. A trainer that failed or died raises TrainingError from every call
until ``restart``, which rebuilds it from the model folder; then resume with ``load``.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.serving.publication import Publication
from lightning_trainer.training.in_process import InProcess
from lightning_trainer.training.on_ray.environ import set_ray_environment
from lightning_trainer.training.process import TrainerProcess
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import StepReport, TrainingBatch

if TYPE_CHECKING:
    from lightning_trainer.training.on_ray.session import RaySession


class TrainerClient:
    """The trainer of one policy. Calls are answered one at a time, in order."""

    turns: AbstractAsyncContextManager[object] = nullcontext()
    """Held while it computes, by processes that share their cores with others."""
    gpu: AbstractAsyncContextManager[object] = nullcontext()
    """Held while it uses a GPU that it shares with an engine."""

    def __init__(self, policy: str, process: TrainerProcess) -> None:
        self._policy = policy
        self.process = process

    @property
    def process_id(self) -> int | None:
        """Return the id of the training process, if it is a separate one and running."""
        return self.process.process_id if self.process.holds(self._policy) else None

    @property
    def companions(self) -> tuple[str, ...]:
        """Return the other policies whose adapters are on the same base."""
        return tuple(name for name in self.process.policies if name != self._policy)

    async def start(self) -> None:
        """Load the model; returns when the trainer is ready.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
            MissingExtraError: the packages for training are not installed.
        """
        await self.process.open(self._policy)

    async def close(self) -> None:
        """Shut the trainer down, leaving nothing behind; idempotent."""
        await self.process.close(self._policy)

    async def restart(self) -> None:
        """Replace the trainer with a new one at step 0, whatever happened to the old one."""
        async with self.gpu:
            await self.start()

    async def _in_turn(self, method: str, *arguments: Any) -> Any:
        async with self.process.computing, self.turns, self.gpu:
            return await self.process.call(self._policy, method, *arguments)

    async def step(self, batch: TrainingBatch) -> StepReport:
        """Take one step over a batch; see ``Trainer.step``.

        If an engine shares the GPU, the report's ``seconds`` also has ``sleep``: how long it took to get the GPU.
        """
        async with self.process.computing, self.turns:
            began = time.monotonic()
            async with self.gpu:
                lent_s = time.monotonic() - began
                report: StepReport = await self.process.call(self._policy, "step", batch)
        if isinstance(self.gpu, nullcontext):
            return report
        return replace(report, seconds={**report.seconds, "sleep": lent_s})

    async def publish(self, path: Path, version: int) -> Publication:
        """Write a version's weights to a file and score its probe; see ``Trainer.publish``."""
        return await self._in_turn("publish", path, version)

    async def save(self, directory: Path, step: int) -> None:
        """Write a checkpoint; see ``Trainer.save``."""
        await self._in_turn("save", directory, step)

    async def load(self, directory: Path) -> int:
        """Load a checkpoint and return its step; see ``Trainer.load``."""
        return await self._in_turn("load", directory)

    async def score(self, token_ids: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        """Return the log-probabilities, in nats, of every token except the first of each sequence."""
        return await self._in_turn("score", token_ids)


def make_trainer(backend: Literal["ray", "inprocess"], settings: TrainerSettings) -> TrainerClient:
    """Return a trainer that has not been started."""
    return make_trainers(backend, [settings])[0]


def make_trainers(
    backend: Literal["ray", "inprocess"],
    settings: Sequence[TrainerSettings],
    *,
    at_once: int = 1,
    gpus: Sequence[str] = (),
    cluster: RayConfig | None = None,
    session: "RaySession | None" = None,
    of_engines: Collection[str] = (),
) -> list[TrainerClient]:
    """Return one trainer, not yet started, for each of the settings; those with the same base share a process.

    Args:
        at_once: how many processes may compute at the same time; the others wait for their turn.
        gpus: of this machine, for the trainers.
        cluster: run in this cluster if it has an address.
        session: a shared connection to the cluster (``cluster_session``).
        of_engines: GPUs of this machine on which a cluster must not place a trainer.
    """
    groups: dict[str | int, list[TrainerSettings]] = {}
    for number, one in enumerate(settings):
        groups.setdefault(one.base or number, []).append(one)
    if backend == "inprocess":
        make = partial(InProcess, gpus=gpus)
    else:
        processes_of_all = sum(group[0].training.world_size for group in groups.values())
        make = _on_ray(session or _session(processes_of_all, gpus, cluster), of_engines)
    processes = {key: make(group) for key, group in groups.items()}
    trainers = [TrainerClient(one.policy, processes[one.base or number]) for number, one in enumerate(settings)]
    if len(processes) > at_once:
        turns = asyncio.Semaphore(at_once)
        for trainer in trainers:
            trainer.turns = turns
    return trainers


def cluster_session(cluster: RayConfig) -> "RaySession":
    """Return a connection to a cluster, shared by trainers and engines; the first one to start joins the cluster."""
    return _session(1, (), cluster)


def _session(processes: int, gpus: Sequence[str], cluster: RayConfig | None) -> "RaySession":
    set_ray_environment(cluster=cluster is not None and cluster.address is not None)
    from lightning_trainer.training.on_ray.session import RaySession

    return RaySession(processes, gpus, cluster)


def _on_ray(
    session: "RaySession", of_engines: Collection[str]
) -> Callable[[Sequence[TrainerSettings]], TrainerProcess]:
    """Return the function that creates a group's process; all share the session."""
    if session.cluster is None:
        from lightning_trainer.training.on_ray.process import RayProcess

        return partial(RayProcess, session=session)

    from lightning_trainer.training.on_ray.cluster_process import ClusterProcess

    return partial(ClusterProcess, session=session, cluster=session.cluster, of_engines=of_engines)
