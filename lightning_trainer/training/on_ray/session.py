"""A private Ray, on loopback and in its own temporary folder, next to any other Ray; or a connection to a cluster.

The last ``stop`` returns when all its processes are gone. After a ``kill -9``, Ray's processes end by themselves, the
last of them within two minutes; the next start ends any that did not, and removes the folder. They are recognized by an
environment variable, because processes whose parent has died cannot be found as children.
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
from lightning_trainer.training.on_ray.cluster import Head, joining_failed, require_reachable
from lightning_trainer.training.on_ray.hang_detection import Stillness
from lightning_trainer.training.on_ray.refusal import Refusal

_OBJECT_STORE_BYTES = 128 * 2**20
"""For batches and reports only; weights go through files."""
_WITHOUT_OBJECT_STORE = {"max_direct_call_object_size": 2**28, "task_rpc_inlined_bytes_limit": 2**29}
"""Batches are sent directly to the actors: putting one into the object store would block forever if a raylet hangs, and
end the process if it dies."""
_SHORT_TEMP = Path("/tmp")
"""Ray's sockets are below its folder, and a socket's path is limited to 107 bytes."""
_FOLDER = re.compile(r"lt-ray-(\d+)-\w+")
_EXIT_TIMEOUT_S = 15.0
_OWNER = "LIGHTNING_TRAINER_RAY_OWNER"
"""In the environment of Ray's processes: the process that started them."""
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="ray-start")
"""Every Ray of this process is started on this thread, which does nothing else. Ray names objects after the thread that
puts them; the thread that starts Ray has the driver's name and keeps it in the next Ray, where a second thread with
that name would give other objects the same ids (Ray 2.60)."""
_SIGACTION_BYTES = 256
"""Larger than ``struct sigaction`` on any platform."""


class RaySession:
    """Ray, reference-counted. A Ray that the process was already using is shared and left running."""

    def __init__(self, processes: int = 1, gpus: Sequence[str] = (), cluster: RayConfig | None = None) -> None:
        """Set up the session; nothing starts before ``start``.

        Args:
            processes: how many will run in it at once, one CPU each.
            gpus: the GPUs that they share, in the syntax of CUDA_VISIBLE_DEVICES.
            cluster: joined if it has an address.
        """
        self.cluster = cluster if cluster is not None and cluster.address is not None else None
        self._joined: Head | None = None
        """The cluster's head, while the cluster is joined."""
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
        """Whether calls can be answered: with only part of Ray alive, a call might wait forever.

        A stopped server is resumed, and one that hangs is killed: calls to it in progress get an error.
        """
        if self._joined is not None:
            return not self._joined.is_lost
        self._stillness.end_what_hangs(self._servers)
        return all(map(_lives, self._servers))

    def look_after_start(self) -> None:
        """While another thread is in ``start``: check that Ray's servers run; the start would wait for them forever."""
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
        """Whether Ray was started here, so that all its processes are on this machine."""
        return self._folder is not None

    def start(self) -> None:
        """Start Ray for its first user, and again if it has died.

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
        """Stop what ``start`` started, when its last user is done."""
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
            _shut_down()
            raise joining_failed(address, error) from error
        self._joined = Head(address)

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
                    logging_level=logging.ERROR,  # it would warn about the signal handler that it leaves to us
                    _node_ip_address="127.0.0.1",
                    _system_config=dict(_WITHOUT_OBJECT_STORE),  # Ray adds its folder to it
                    _temp_dir=str(self._folder / "ray"),  # Ray opens it to all users, but not its parent
                )
        except Exception as error:
            self._end()
            if _passing(error) and tries > 1:
                return self._begin(tries - 1)
            told = TrainerDiedError if _passing(error) else TrainingError  # a retry may succeed
            raise told(f'Ray did not start ({error}); set backend = "inprocess" in [training]') from error
        finally:
            self._refusal.end()
        self._servers = [process for process in _processes_in(self._folder) if _is_server(process)]

    def _gpus_named(self) -> AbstractContextManager[None]:
        """Set the GPUs that Ray sees when it starts, and so assigns."""
        return _in_environment("CUDA_VISIBLE_DEVICES", ",".join(self._gpus)) if self._gpus else nullcontext()

    def _end(self) -> None:
        if self._joined is not None:
            self._joined.close()
            self._joined = None
            _shut_down()
        if self._folder is None:
            return
        processes = list({*_processes_in(self._folder), *_processes_of(os.getpid())})
        _shut_down()
        _, alive = psutil.wait_procs(processes, timeout=_EXIT_TIMEOUT_S)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=_EXIT_TIMEOUT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._servers = None, []


def _passing(error: Exception) -> bool:
    """Whether a restart of Ray may succeed.

    It may if a server took longer than its fixed 30 s (an ``Exception``, on a busy machine), or if one died meanwhile,
    which each of Ray's steps reports differently.
    """
    died = isinstance(error, RayError | ConnectionError) or "GCS" in str(error)
    return type(error) is Exception or died


@contextmanager
def _in_environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for Ray's servers, whose workers inherit it; later processes do not get it."""
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
    """Preserve the process's SIGTERM handler.

    Ray's core replaces the handler, from any thread: when it starts, with one that prints a stack and aborts, and when
    it ends, with the system's, which ends the process. Python can restore a handler only from the main thread, the C
    library from any.
    """
    library = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    known = library.sigaction(signal.SIGTERM, None, action) == 0
    try:
        yield
    finally:
        if known:
            library.sigaction(signal.SIGTERM, action, None)


def _shut_down() -> None:
    with _termination_kept():
        ray.shutdown()


def _is_server(process: psutil.Process) -> bool:
    """Whether it is one of the two servers without which Ray does not work."""
    return _name(process) in ("gcs_server", "raylet")


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _port_of_control_store(folder: Path) -> int | None:
    """Return the port that the ``gcs_server`` of a Ray in this folder has written down; None if it has not yet."""
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
    """Return Ray's own processes, which have the folder on their command line, and those that they started."""
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
    """Return Ray's processes that this one started or (None) those whose owner has died; other users' are hidden."""
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
    """Return the owner, from its environment or, if Ray's process title overwrites that, from its open files."""
    named = process.environ().get(_OWNER, "")
    if named.isdecimal():
        return int(named)
    if not process.cmdline()[0].startswith("ray::"):
        return None  # another program may be reading one of Ray's files, with the path in its arguments
    for opened in Path(f"/proc/{process.pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if (match := _FOLDER.search(os.readlink(opened))) is not None:
                return int(match[1])
    return None


def _remove_abandoned(parent: Path) -> None:
    """End the processes and remove the folders of runs that were killed."""
    for process in _processes_of(None):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for folder in parent.glob("lt-ray-*"):
        if (match := _FOLDER.fullmatch(folder.name)) and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)
