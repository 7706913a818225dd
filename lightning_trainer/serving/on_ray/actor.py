"""The process on an engine's node: a Ray actor that starts, watches, and ends the engine's process there.

The engine is started by the same code as on the daemon's own machine; requests go straight to it and never through Ray.
Whatever ends the actor (its node, the cluster, the daemon's death) closes the engine process's standard input, and so
ends the engine.
"""

import asyncio
import platform
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ray

from lightning_trainer import __version__
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.node_files import NodeFolder
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.shared_memory import WeightFiles

CALLS_AT_ONCE = 8
"""Concurrent calls of an actor: one waits for the engine's end, one for its start, the others write files."""
_MODEL, _TEMPLATE, _LOGS = "model", "chat_template", "logs"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A node that may run an engine, and its software."""

    node_id: str
    host: str
    address: str
    python: str
    ours: str


@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement of an engine that answers requests."""

    base_url: str
    token: str
    vllm: str
    """The version of vLLM."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an engine's process ended."""

    reason: str
    killed: bool
    log: bytes
    """The end of the log."""


def this_place() -> Place:
    """Describe the node that this process is on."""
    python = ".".join(platform.python_version_tuple()[:2])
    node_id = ray.get_runtime_context().get_node_id()
    return Place(node_id, socket.gethostname(), ray.util.get_node_ip_address(), python, __version__)


class EngineActor:
    """One life of one engine. Its methods run on several threads, and the engine on its own event loop.

    None of the methods is a coroutine: with one, Ray would run all of them on one thread.
    """

    def __init__(self) -> None:
        self._files: NodeFolder | None = None
        self._weights: WeightFiles | None = None
        self._engine: EngineProcess | None = None
        # Ray would choose uvloop, which would leave Ray's own sockets open in the engine's process.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="engine", daemon=True).start()

    def describe(self) -> Place:
        """Describe the node that Ray placed the actor on."""
        return this_place()

    def settle(self, version_bytes: int) -> None:
        """On a node other than the daemon's, create folders for files, and for weights in this node's shared memory.

        Raises:
            PublicationError: there is no room for two versions of this many bytes.
        """
        self._files = NodeFolder()
        self._weights = WeightFiles(self._files.root, version_bytes=version_bytes)

    def on_disk(self, method: str, *arguments: Any) -> Any:
        """Call a method of the folder for files."""
        assert self._files is not None
        return getattr(self._files, method)(*arguments)

    def in_memory(self, method: str, *arguments: Any) -> Any:
        """Call a method of the folder for weights."""
        assert self._weights is not None
        return getattr(NodeFolder(self._weights.folder), method)(*arguments)

    def weight_path(self, name: str) -> str:
        """Return the path that a file of weights has on this node."""
        assert self._weights is not None
        return str(self._weights.folder / name)

    def start(self, settings: EngineSettings) -> int | None:
        """Start the process, with this node's paths and GPUs, and return its process id.

        Raises:
            EngineError: it cannot be started.
        """
        gpus = tuple(map(str, ray.get_runtime_context().get_accelerator_ids().get("GPU", ())))
        settings = replace(settings, host=ray.util.get_node_ip_address(), gpus=gpus or None)
        if self._files is not None and self._weights is not None:
            engine = settings.engine
            if engine.chat_template is not None:
                engine = engine.model_copy(update={"chat_template": self._files.path(_TEMPLATE)})
            folders = {"model_dir": self._files.path(_MODEL), "log_dir": self._files.path(_LOGS)}
            settings = replace(settings, **folders, weights_dir=self._weights.folder, engine=engine)
        self._engine = self._wait(_started(settings))
        return self._engine.pid

    def ready(self, timeout_s: float) -> Announcement:
        """Wait until requests are answered.

        Raises:
            EngineError: they are not; the message says why.
        """
        engine = self._running
        self._wait(engine.ready(timeout_s))
        return Announcement(engine.base_url, engine.token, engine.announcement.result()["vllm"])

    def ended(self) -> Ended:
        """Wait for the end of the process."""
        engine = self._running
        reason = self._wait(_end_of(engine))
        return Ended(reason, engine.killed, engine.log_tail())

    def stop(self) -> None:
        """End the process and remove all of its files."""
        if self._engine is not None:
            self._wait(self._engine.stop())
        if self._weights is not None:
            self._weights.remove()
        if self._files is not None:
            self._files.remove()

    @property
    def _running(self) -> EngineProcess:
        assert self._engine is not None, "start it first"
        return self._engine

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _started(settings: EngineSettings) -> EngineProcess:
    engine = EngineProcess(settings)
    await engine.start()
    return engine


async def _end_of(engine: EngineProcess) -> str:
    return await asyncio.shield(engine.exited)


def shipped(settings: EngineSettings) -> dict[str, Path]:
    """Return the files that an engine on another node needs from the daemon's disk, by their names there."""
    template = settings.engine.chat_template
    return {_MODEL: settings.model_dir, **({} if template is None else {_TEMPLATE: template})}
