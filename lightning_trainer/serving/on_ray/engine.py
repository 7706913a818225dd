"""An engine on a cluster node, from a supervisor's point of view: one life that starts, serves, and ends.

The next life may be on another node: the model is sent there again, and the live weights are published and proven
again. Weights go in chunks through the cluster's object store into a file in the shared memory of the engine's node,
which keeps serving the previous version meanwhile. After the last chunk, the whole file is checked against the
publication's checksum and only then loaded: a partial file is never loaded.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.errors import EngineError, LightningError, PublicationError, TrainingError
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.host.weights.weight_file import version_bytes
from lightning_trainer.serving.node_files import ship
from lightning_trainer.serving.on_ray.actor import (
    CALLS_AT_ONCE,
    Announcement,
    Ended,
    EngineActor,
    Place,
    shipped,
    this_place,
)
from lightning_trainer.serving.publication import Publication
from lightning_trainer.serving.settings import EngineSettings

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 60.0
"""How long an actor may take to end its engine cleanly; then it is killed, and the engine ends by itself."""
_BESIDE_THE_ACTOR_S = 30.0
"""Extra time for an actor to report that its engine did not start in time."""


class Session(Protocol):
    """The daemon's connection to the cluster, shared with its trainers."""

    def start(self) -> None:
        """Join the cluster. Raises TrainingError: that is not possible."""
        ...

    def stop(self) -> None:
        """Leave the cluster, once every user of the session has stopped."""
        ...


@dataclass(slots=True)
class EngineCluster:
    """The cluster that runs the replicas of a daemon's engines."""

    config: RayConfig
    session: Session
    gpus: int = 0
    """GPUs that each replica requests."""
    _vllm: dict[object, tuple[tuple[str, ...], str, str]] = field(default_factory=dict)
    """For each life of an engine: the policies that it serves, its version of vLLM, and its node."""

    def engine(self, settings: EngineSettings) -> "ClusterEngine":
        """Return an engine that has not been started."""
        return ClusterEngine(settings, self)

    def enter(self, engine: object, policies: tuple[str, ...], vllm: str, host: str) -> None:
        """Note the version of vLLM that an engine has on its node.

        Raises:
            EngineError: another engine that serves these policies has a different version.
        """
        for served, version, first in self._vllm.values():
            if served == policies and version != vllm:
                raise EngineError(
                    f"the node {host} has vLLM {vllm} and {first}, where another replica is, {version}; install the "
                    "same on both"
                )
        self._vllm[engine] = (policies, vllm, host)

    def leave(self, engine: object) -> None:
        """Forget an engine that has ended: its node may have another vLLM when the next one starts."""
        self._vllm.pop(engine, None)


class ClusterEngine(Engine):
    """One life of an engine on whichever node has room."""

    def __init__(self, settings: EngineSettings, cluster: EngineCluster) -> None:
        super().__init__(settings)
        self._cluster = cluster
        self._joined = False
        self._actor: Any = None
        self._place: Place | None = None
        self._pid: int | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._pid

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._cluster.session.start)
            self._joined = True
            self._place = place = await self._placed()
            self.node = place.address
            here = this_place()
            _require_alike(place, here)
            if place.node_id != here.node_id:
                await self._ask("settle", _weight_bytes(self.settings))
                for name, path in shipped(self.settings).items():
                    await ship(path, name, self._on_disk)
                self._transport = ObjectStoreChunks(self._ask)
            self._pid = await self._ask("start", self.settings)
        except TrainingError as error:
            raise EngineError(str(error)) from error
        self._watching = asyncio.create_task(self._watch(), name="engine-on-a-node")

    async def ready(self, timeout_s: float) -> None:
        assert self._place is not None
        asking = self._ask("ready", timeout_s, timeout_s=timeout_s + _BESIDE_THE_ACTOR_S)
        try:
            announced: Announcement = await self._while_alive(asking, f"on the node {self._place.host} did not start")
        except TimeoutError:
            raise EngineError(f"the node {self._place.host} does not say whether its engine has started") from None
        self._cluster.enter(self, self.settings.policies, announced.vllm, self._place.host)
        self._connect(announced.base_url, announced.token)

    async def stop(self) -> None:
        self._stopping = True
        self._cluster.leave(self)
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # the node may have died: then nothing is left to stop
                await _answer(actor.stop.remote(), _STOP_TIMEOUT_S)
            if self._watching is not None:
                await asyncio.wait({self._watching}, timeout=_STOP_TIMEOUT_S)
            with contextlib.suppress(Exception):
                ray.kill(actor)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._end("it was stopped")
        await self._disconnect()
        if self._joined:
            self._joined = False
            await asyncio.to_thread(self._cluster.session.stop)

    async def _placed(self) -> Place:
        config, gpus = self._cluster.config, self._cluster.gpus
        there = await asyncio.to_thread(ray.cluster_resources)
        if there.get("CPU", 0) < 1 or there.get("GPU", 0) < gpus:
            raise EngineError(
                f"the Ray cluster at {config.address} has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} "
                f"GPUs, and an engine asks for 1 and {gpus}; add nodes, or lower tensor_parallel_size in [engine]"
            )
        actor: Any = ray.remote(EngineActor)
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_concurrency": CALLS_AT_ONCE}
        self._actor = actor.options(**options, scheduling_strategy="SPREAD").remote()
        try:
            return await self._ask("describe", timeout_s=config.start_timeout_s)
        except TimeoutError:
            raise EngineError(
                f"the Ray cluster at {config.address} gave the engine no place within {config.start_timeout_s:g} s: "
                f"all of its {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs are in use; add nodes, or "
                "lower replicas in [engine]"
            ) from None

    async def _watch(self) -> None:
        try:
            ended: Ended = await self._ask("ended")
        except EngineError as error:
            self.killed = not self._stopping
            self._end(str(error))
            return
        self.killed = ended.killed and not self._stopping
        if ended.log:
            await asyncio.to_thread(_write_log, self.settings, ended.log)
        self._end(ended.reason)

    def _end(self, reason: str) -> None:
        if not self.exited.done():
            self.exited.set_result(reason)

    async def _on_disk(self, method: str, *arguments: Any) -> Any:
        return await self._ask("on_disk", method, *arguments)

    async def _ask(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call the actor, from a thread: large arguments go through the node's object store, which may be busy.

        Raises:
            EngineError: the node or the actor is gone, or the call failed there.
            TimeoutError: it takes longer than ``timeout_s``.
        """
        actor = self._actor
        if actor is None:
            raise EngineError("the engine was stopped")
        try:
            reference = await asyncio.to_thread(getattr(actor, method).remote, *arguments)
            return await _answer(reference, timeout_s)
        except RayTaskError as error:
            if isinstance(error.cause, LightningError):
                raise error.cause from None
            raise EngineError(f"the engine's node failed: {type(error.cause).__name__}: {error.cause}") from error
        except (RayError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            where = "" if self._place is None else f" {self._place.host}"
            said = (str(error).strip().splitlines() or [""])[0]
            raise EngineError(f"the engine's node{where} is gone ({type(error).__name__}: {said})") from error


async def _answer(reference: Any, timeout_s: float | None) -> Any:
    async with asyncio.timeout(timeout_s):
        return await asyncio.wrap_future(reference.future())


def _require_alike(there: Place, here: Place) -> None:
    """Raise EngineError if the node has a different Python or version of this project from the daemon's."""
    for what, theirs, ours in (("Python", there.python, here.python), ("lightning-trainer", there.ours, here.ours)):
        if theirs != ours:
            raise EngineError(f"the node {there.host} has {what} {theirs} and the daemon {ours}; install {ours} there")


def _weight_bytes(settings: EngineSettings) -> int:
    """Return the size of one version, summed over the served policies."""
    return len(settings.policies) * version_bytes(settings.model_dir, settings.engine.dtype, settings.lora_rank)


def _write_log(settings: EngineSettings, log: bytes) -> None:
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    if settings.log_path.exists():
        settings.log_path.replace(settings.log_dir / "engine.previous.log")
    settings.log_path.write_bytes(log)


Ask = Callable[..., Awaitable[Any]]
"""``await ask(method, *arguments)``: calls the engine's actor."""


class ObjectStoreChunks:
    """Transfers weights to one engine on a node other than the daemon's; a ``WeightTransport``."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._there: dict[str, str] = {}
        """The path of each transferred file on the node, by name."""
        self._served: dict[str, str] = {}
        """The name of each policy's loaded file, which the engine may read again."""

    async def bring(self, publication: Publication) -> Publication:
        """Copy the file to the engine's node, unless it is there, and return the publication with the copy's path."""
        name = _name(publication)
        if name not in self._there:
            try:
                await ship(Path(publication.path), name, self._in_memory)
            except TrainingError as error:
                raise PublicationError(f"{publication.name} cannot be sent to the engine: {error}") from error
            self._there[name] = await self._ask("weight_path", name)
        return replace(publication, path=self._there[name])

    async def settle(self, publication: Publication, *, served: bool) -> None:
        """Remove the copy that the engine no longer needs: the one served before, or this one if it was refused."""
        name = _name(publication)
        outdated: str | None = name
        if served:
            outdated, self._served[publication.policy] = self._served.get(publication.policy), name
        if outdated is not None and outdated not in self._served.values():
            self._there.pop(outdated, None)
            await self._in_memory("discard", outdated)

    async def _in_memory(self, method: str, *arguments: Any) -> Any:
        return await self._ask("in_memory", method, *arguments)


def _name(publication: Publication) -> str:
    """Return a unique name: two files of one version differ, because the first may be in use, or incomplete."""
    return f"{publication.policy}/v{publication.version}-{publication.checksum}.safetensors"
