"""An existing Ray cluster: whether it can be joined, has enough resources, and its nodes match ours."""

import platform
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import PlacementGroup, placement_group

from lightning_trainer import __version__
from lightning_trainer.config.hardware import comparable
from lightning_trainer.config.sections import RayConfig
from lightning_trainer.errors import TrainingError

_CONNECT_TIMEOUT_S = 5.0
_MISSES = 30
"""Failed looks in a row after which a head counts as lost: half a minute if its machine answers, otherwise two and a
half."""


@dataclass(frozen=True, slots=True)
class Node:
    """The node of a trainer process, and its software."""

    node_id: str
    host: str
    process_id: int
    python: str
    ours: str
    verl: str
    gpus: tuple[str, ...] = ()
    """Those of the node's GPUs that Ray gave to the process."""


def this_node(process_id: int) -> Node:
    """Describe the node that this process is on."""
    try:
        verl = version("verl")
    except PackageNotFoundError:
        verl = "none"
    python = ".".join(platform.python_version_tuple()[:2])
    return Node(ray.get_runtime_context().get_node_id(), socket.gethostname(), process_id, python, __version__, verl)


def require_reachable(address: str) -> None:
    """Check that the cluster can be reached. Raises TrainingError: nothing listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise TrainingError(
            f"[ray] address = {address!r} cannot be reached ({error}); start the head there (ray start --head), or "
            "correct it"
        ) from error


class Head:
    """Looks whether a cluster's head can still be reached: Ray waits for it indefinitely and does not say."""

    def __init__(self, address: str, reach: Callable[[str], None] = require_reachable) -> None:
        """``reach``: raises an error if nothing listens at the address."""
        self._address = address
        self._reach = reach
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="ray-head")
        self.look: Future[None] | None = None
        """The latest look, which may not have ended."""
        self._misses = 0

    @property
    def is_lost(self) -> bool:
        """Whether the head was missed many times in a row; each access makes a thread look again."""
        if self.look is None or self.look.done():
            if self.look is not None:
                self._misses = 0 if self.look.exception() is None else self._misses + 1
            self.look = self._looker.submit(self._reach, self._address)
        return self._misses >= _MISSES

    def close(self) -> None:
        """Stop looking."""
        self._looker.shutdown(wait=False, cancel_futures=True)


def joining_failed(address: str, error: BaseException) -> TrainingError:
    """Return Ray's error, which takes many lines, as one sentence."""
    said = " ".join(str(error).split())
    if "ersion mismatch" in said:
        return TrainingError(f"the Ray cluster at {address} has other versions than this daemon: {said[:400]}")
    return TrainingError(
        f"the Ray cluster at {address} cannot be joined ({type(error).__name__}: {said[:300]}); the daemon's machine "
        f"must be a node of it: ray start --address={address} --num-cpus=0 --num-gpus=0"
    )


def require_alike(nodes: Sequence[Node], here: Node) -> None:
    """Check that all nodes match the daemon's.

    Raises:
        TrainingError: one has another Python, verl, or version of this project.
    """
    for node in nodes:
        for what, theirs, ours in (
            ("Python", node.python, here.python),
            ("lightning-trainer", node.ours, here.ours),
            ("verl", node.verl, here.verl),
        ):
            if theirs != ours:
                raise TrainingError(
                    f"the node {node.host} has {what} {theirs} and the daemon {ours}; install {ours} there"
                )


def require_apart(nodes: Sequence[Node], here: Node, of_engines: Collection[str]) -> None:
    """Check that no process has a GPU of this machine on which an engine computes: Ray does not know of engines.

    Raises:
        TrainingError: one has.
    """
    given = {gpu for node in nodes if node.node_id == here.node_id for gpu in node.gpus}
    names = comparable({*given, *of_engines})
    if both := sorted(gpu for gpu in given if names[gpu] in {names[one] for one in of_engines}):
        raise TrainingError(
            f"Ray gives the trainer GPU {', '.join(both)} of the daemon's machine {here.host}, on which an engine "
            "computes; start Ray there with --num-gpus=0, name other GPUs in [engine] gpus, or set placement in it to "
            '"cluster"'
        )


def reserve(processes: int, gpus_per_process: float, config: RayConfig) -> PlacementGroup:
    """Reserve a placement group bundle for each process, spread or packed as configured.

    Raises:
        TrainingError: the cluster has too few resources, or they do not become free in time.
    """
    there = ray.cluster_resources()
    cpus, gpus = processes, processes * gpus_per_process
    if there.get("CPU", 0) < cpus or there.get("GPU", 0) < gpus:
        raise TrainingError(
            f"the Ray cluster at {config.address} has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs, "
            f"and the trainer asks for {cpus} and {gpus:g}; add nodes, or lower world_size or gpus_per_process in "
            "[training]"
        )
    one: dict[str, float] = {"CPU": 1.0, **({"GPU": gpus_per_process} if gpus_per_process else {})}
    group: Any = placement_group([one] * processes, strategy=config.placement.upper())
    try:
        ray.get(group.ready(), timeout=config.start_timeout_s)
    except GetTimeoutError:
        ray.util.remove_placement_group(group)
        raise TrainingError(
            f"the Ray cluster at {config.address} did not give {processes} processes their place within "
            f"{config.start_timeout_s:g} s: others use it, or no node has a whole GPU and CPU for each"
        ) from None
    return group
