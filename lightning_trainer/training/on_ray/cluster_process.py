"""Trainers on the nodes of a cluster: placed by a placement group, with files sent to the nodes that read them.

The first process's files come back to the daemon's disk: published weights, and checkpoints with every process's part.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.serving.node_files import Elsewhere, fetch, ship
from lightning_trainer.serving.publication import Publication
from lightning_trainer.training.checkpoint_folder import read_manifest, whole_folder
from lightning_trainer.training.on_ray.cluster import require_alike, require_apart, reserve, this_node
from lightning_trainer.training.on_ray.process import RayProcess, reference_of
from lightning_trainer.training.on_ray.session import RaySession
from lightning_trainer.training.settings import TrainerSettings

_Ask = Callable[..., Awaitable[Any]]
"""A call to the processes' trainers, without its arguments."""


class ClusterProcess(RayProcess):
    """Trainers on a cluster that was started separately."""

    def __init__(
        self,
        settings: Sequence[TrainerSettings],
        session: RaySession,
        cluster: RayConfig,
        of_engines: Collection[str] = (),
    ) -> None:
        """``of_engines``: GPUs of the daemon's machine on which no process may be."""
        super().__init__(settings, session)
        self._cluster = cluster
        self._of_engines = of_engines
        self._group: Any = None
        self._receivers: list[int] = []
        """The first rank on each node other than the daemon's: it is sent what all ranks there read."""

    async def _places(self) -> Sequence[Mapping[str, Any]]:
        common = self._common
        self._group = await asyncio.to_thread(
            reserve, common.training.world_size, common.gpus_per_process, self._cluster
        )
        return [
            {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, rank)}
            for rank in range(common.training.world_size)
        ]

    async def _settle(self) -> None:
        nodes = await self._answers([actor.describe.remote() for actor in self._actors])
        here = this_node(os.getpid())
        require_alike(nodes, here)
        require_apart(nodes, here, self._of_engines)
        first = {node.node_id: rank for rank, node in reversed([*enumerate(nodes)]) if node.node_id != here.node_id}
        self._receivers = sorted(first.values())
        for rank in self._receivers:
            await ship(self._common.model_dir, "model", self._node(rank))
            for one in self._settings:
                if one.reference_dir is not None:
                    await ship(one.reference_dir, reference_of(one.policy), self._node(rank))
        folders = {node_id: await self._node(rank)("path", "") for node_id, rank in first.items()}
        placed = zip(self._actors, nodes, strict=True)
        await self._answers([a.settle.remote(folders[node.node_id]) for a, node in placed if node.node_id in folders])

    async def _asked(self, what: str, policy: str, *arguments: Any) -> Any:
        if what == "call":
            method, *given = arguments
            carried = {"publish": self._publish, "save": self._save, "load": self._load}.get(method)
            if carried is not None:
                return await carried(partial(super()._asked, what, policy, method), policy, *given)
        return await super()._asked(what, policy, *arguments)

    async def _publish(self, ask: _Ask, policy: str, path: Path, version: int) -> Publication:
        name = f"published/{policy}/{path.name}"
        publication: Publication = await ask(Elsewhere(path, name), version)
        if 0 not in self._receivers:
            return publication
        partial_path = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            await fetch(name, partial_path, self._node(0))
            os.replace(partial_path, path)
        finally:
            partial_path.unlink(missing_ok=True)
            await self._node(0)("discard", name)
        return replace(publication, path=str(path))

    async def _save(self, ask: _Ask, policy: str, directory: Path, step: int) -> None:
        name = f"checkpoints/{policy}/{directory.name}"
        await ask(Elsewhere(directory, name), step)
        if 0 in self._receivers:
            with whole_folder(directory) as folder:
                await fetch(name, folder, self._node(0))
            await self._node(0)("discard", name)

    async def _load(self, ask: _Ask, policy: str, directory: Path) -> int:
        read_manifest(directory)
        name = f"checkpoints/{policy}/{directory.name}"
        for rank in self._receivers:
            await ship(directory, name, self._node(rank))
        step = await ask(Elsewhere(directory, name))
        for rank in self._receivers:
            await self._node(rank)("discard", name)
        return step

    async def _end(self) -> None:
        if ray.is_initialized() and self._session.lives:  # otherwise, requests to the head would wait
            with contextlib.suppress(Exception):  # nodes may have died; the next start removes their folders
                async with asyncio.timeout(10):
                    await asyncio.gather(*(self._node(rank)("remove") for rank in self._receivers))
            if self._group is not None:
                with contextlib.suppress(Exception):
                    ray.util.remove_placement_group(self._group)
        self._receivers, self._group = [], None
        await super()._end()

    def _node(self, rank: int) -> partial[Awaitable[Any]]:
        return partial(self._ask_node, rank)

    async def _ask_node(self, rank: int, method: str, *arguments: Any) -> Any:
        (answer,) = await self._answers([self._actors[rank].on_node.remote(method, *arguments)])
        return answer
