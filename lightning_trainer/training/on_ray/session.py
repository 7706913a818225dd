"""A Ray of our own: on the loopback interface, in a temporary folder of its own, beside any other Ray. Or a cluster.

The last ``stop`` returns when every process of it is gone. After a ``kill -9`` Ray's processes end by themselves, the
last of them within two minutes; the next start ends any that did not, and removes the folder. They are known by an
environment variable: those whose parent has died are nobody's children.
"""

import contextlib
import ctypes
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import psutil
import ray
from ray.exceptions import RayError

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.errors import TrainerDiedError, TrainingError
from lightning_trainer.training.on_ray.cluster import joining_failed, require_reachable
from lightning_trainer.training.on_ray.hang_detection import Stillness
from lightning_trainer.training.on_ray.refusal import Refusal

_OBJECT_STORE_BYTES = 128 * 2**20
"""Batches and reports only; weights go through files."""
_WITHOUT_OBJECT_STORE = {"max_direct_call_object_size": 2**28, "task_rpc_inlined_bytes_limit": 2**29}
"""Batches go to the actors themselves: whoever puts one into the store waits for ever for a raylet that hangs, and
ends with one that dies."""
_SHORT_TEMP = Path("/tmp")
"""Ray's sockets live under its folder and a socket's path is limited to 107 bytes."""
_FOLDER = re.compile(r"lt-ray-(\d+)-\w+")
_EXIT_TIMEOUT_S = 15.0
_OWNER = "LIGHTNING_TRAINER_RAY_OWNER"
"""In the environment of Ray's processes: the process that started them."""
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="ray-start")
"""Every Ray of this process is started on this thread, and nothing else happens on it. Ray names objects by the thread
that puts them; the one that it is started on has the driver's name and keeps it in the next Ray, where a second thread
with that name would give other objects the same ids (Ray 2.60)."""
_SIGACTION_BYTES = 256
"""More than a ``struct sigaction`` has anywhere."""


class RaySession:
    """Ray, as long as anybody needs it. One that the process was using already is shared and left running."""

    def __init__(self, processes: int = 1, gpus: Sequence[str] = (), cluster: RayConfig | None = None) -> None:
        """
        Args:
            processes: how many will run in it at once, a processor each.
            gpus: that they divide, as CUDA_VISIBLE_DEVICES names them.
            cluster: joined where it has an address.
        """
        self.cluster = cluster if cluster is not None and cluster.address is not None else None
        self._joined = False
        self._processes = processes
        self._gpus = tuple(gpus)
        self._lock = threading.Lock()
        self._holders = 0
        self._folder: Path | None = None
        self._servers: list[psutil.Process] = []
        self._stillness = Stillness()
        self._refusal = Refusal()

    @property
    def lives(self) -> bool:
        """Whether calls can be answered: whoever waits for half a Ray may wait for ever.

        A server that was stopped is let go on, and one that hangs is killed: whoever is in the middle of asking it
        something gets an error.
        """
        self._stillness.end_what_hangs(self._servers)
        return all(map(_lives, self._servers))

    def look_after_start(self) -> None:
        """While another thread is in ``start``: see that Ray's servers run, for which it would wait for ever."""
        folder = self._folder
        if folder is None or self._servers:
            return
        servers = list(filter(_is_server, _processes_in(folder)))
        self._stillness.end_what_hangs(servers)
        port = _port_of_control_store(folder)
        if port is not None and "gcs_server" not in map(_name, servers):
            self._refusal.begin(port)

    @property
    def is_own(self) -> bool:
        """Whether it was started here, so that all its processes are of this machine."""
        return self._folder is not None

    def start(self) -> None:
        """Start Ray for the first who needs it, and again where it has died under the others.

        Raises:
            TrainingError: it does not start here.
        """
        with self._lock:
            if not self.lives:
                self._end()
            if not ray.is_initialized():
                begin = self._begin if self.cluster is None else partial(self._join, self.cluster)
                _STARTER.submit(begin).result()
            self._holders += 1

    def stop(self) -> None:
        """Take down what ``start`` started, when nobody needs it any longer."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._end()

    def _join(self, cluster: RayConfig) -> None:
        address = cluster.address or ""
        require_reachable(address)
        try:
            with _termination_kept():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            ray.shutdown()
            raise joining_failed(address, error) from error
        self._joined = True

    def _begin(self, tries: int = 4) -> None:
        parent = _SHORT_TEMP if _SHORT_TEMP.is_dir() else Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        self._folder = Path(tempfile.mkdtemp(prefix=f"lt-ray-{os.getpid()}-", dir=parent))
        try:
            with _termination_kept(), _in_environment(_OWNER, str(os.getpid())), self._gpus_named():
                ray.init(
                    address="local",
                    num_cpus=self._processes,
                    num_gpus=len(self._gpus),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,  # it warns of the signal handler that it leaves to us
                    _node_ip_address="127.0.0.1",
                    _system_config=_WITHOUT_OBJECT_STORE,
                    _temp_dir=str(self._folder / "ray"),  # Ray opens it to everybody, and not what it lies in
                )
        except Exception as error:
            self._end()
            if _passing(error) and tries > 1:
                return self._begin(tries - 1)
            told = TrainerDiedError if _passing(error) else TrainingError  # another try may do better
            raise told(f'Ray did not start ({error}); set backend = "inprocess" in [training]') from error
        finally:
            self._refusal.end()
        self._servers = [process for process in _processes_in(self._folder) if _is_server(process)]

    def _gpus_named(self) -> AbstractContextManager[None]:
        """Ray deals out those that it sees when it starts."""
        return _in_environment("CUDA_VISIBLE_DEVICES", ",".join(self._gpus)) if self._gpus else nullcontext()

    def _end(self) -> None:
        if self._joined:
            ray.shutdown()
            self._joined = False
        if self._folder is None:
            return
        processes = list({*_processes_in(self._folder), *_processes_of(os.getpid())})
        ray.shutdown()
        _, alive = psutil.wait_procs(processes, timeout=_EXIT_TIMEOUT_S)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=_EXIT_TIMEOUT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._servers = None, []


def _passing(error: Exception) -> bool:
    """Whether Ray may start the next time: a server took longer than its fixed 30 s (an ``Exception``, on a busy
    machine), or died meanwhile, which each of Ray's own steps says in its own way."""
    died = isinstance(error, RayError | ConnectionError) or "GCS" in str(error)
    return type(error) is Exception or died


@contextmanager
def _in_environment(name: str, value: str) -> Iterator[None]:
    """For Ray's servers, whose environment their workers inherit; nothing else that is started later gets it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _termination_kept() -> Iterator[None]:
    """Keep what the process does at SIGTERM.

    Ray's core replaces it by a handler that prints a stack and aborts, from whatever thread; Python can put its own
    back from the main thread alone, the C library from any.
    """
    library = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    known = library.sigaction(signal.SIGTERM, None, action) == 0
    try:
        yield
    finally:
        if known:
            library.sigaction(signal.SIGTERM, action, None)


def _is_server(process: psutil.Process) -> bool:
    """One of the two without which there is no Ray."""
    return _name(process) in ("gcs_server", "raylet")


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _port_of_control_store(folder: Path) -> int | None:
    """The port that the ``gcs_server`` of a Ray in this folder has written down; None before it has."""
    for file in folder.glob("ray/session_2*/gcs_server_port_*"):
        with contextlib.suppress(OSError, ValueError):
            return int(file.read_text())
    return None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _processes_in(folder: Path) -> list[psutil.Process]:
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


def _processes_of(owner: int | None) -> list[psutil.Process]:
    """Ray's processes that this one started, or (None) those whose owner has died; other users' are not to be seen."""
    found = []
    for process in psutil.process_iter():
        try:
            if not any("ray::" in part or "/ray/" in part for part in process.cmdline()):
                continue
            named = _owner_of(process)
            if named is not None and (named == owner or (owner is None and not psutil.pid_exists(named))):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _owner_of(process: psutil.Process) -> int | None:
    """By its environment, or, where a title of Ray's lies over that, by the files that it has open."""
    named = process.environ().get(_OWNER, "")
    if named.isdecimal():
        return int(named)
    if not process.cmdline()[0].startswith("ray::"):
        return None  # another program may look into a file of Ray's, and its arguments say so
    for opened in Path(f"/proc/{process.pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if (match := _FOLDER.search(os.readlink(opened))) is not None:
                return int(match[1])
    return None


def _remove_abandoned(parent: Path) -> None:
    """End the processes and remove the folders of those that were killed before they could."""
    for process in _processes_of(None):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for folder in parent.glob("lt-ray-*"):
        if (match := _FOLDER.fullmatch(folder.name)) and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)
