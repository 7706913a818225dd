"""The processes that train one policy together: how they join, and what only the first of them does.

Every process gets every call and does the same; only a model's passes are divided among them
(``update.batch.packed.Share``). A single process is a group too, which opens no port.
"""

import ipaddress
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import torch.distributed as dist

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.training.device import chosen

_BACKENDS = {"cpu": "cpu:gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""By device. On the CPU, verl would ask for "cpu:gloo,cpu:gloo", which torch refuses as a duplicate."""
_CHUNK_BYTES = 16 * 2**20
_JOIN_TIMEOUT = timedelta(minutes=5)

Result = TypeVar("Result")


class Meeting(NamedTuple):
    """The address where the processes of a group meet."""

    host: str
    port: int


class Host:
    """The group's store, in its first process, bound only to that machine's address."""

    def __init__(self, address: str, world_size: int) -> None:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.meeting = Meeting(address, listener.getsockname()[1])
        # Given a socket, torch does not open one on every interface.
        self.store = dist.TCPStore(
            *self.meeting,
            world_size=world_size,
            is_master=True,
            timeout=_JOIN_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def join(meeting: Meeting, rank: int, world_size: int, host: Host | None = None) -> None:
    """Join a group; returns when all processes have joined.

    Args:
        host: in the process that holds the store.
    """
    interface = _interface_to(meeting)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ():
        os.environ.setdefault(name, interface)
    store = host.store if host else dist.TCPStore(*meeting, world_size=world_size, timeout=_JOIN_TIMEOUT)
    dist.init_process_group(_BACKENDS[chosen()], store=store, rank=rank, world_size=world_size)


def _interface_to(meeting: Meeting) -> str:
    """Return the network interface that reaches the group; a host name may resolve to another one."""
    if ipaddress.ip_address(meeting.host).is_loopback:
        return "lo"
    family = socket.AF_INET6 if ":" in meeting.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(meeting)  # sends nothing
        own = probe.getsockname()[0]
    found = (name for name, addresses in psutil.net_if_addrs().items() if own in {one.address for one in addresses})
    name = next(found, "")
    return "" if name == "lo" and meeting.host != own else name


def collect(folder: Path, own: Path) -> None:
    """Copy what each process has written into its own folder into the first one's, on whichever disk that is.

    Args:
        folder: of the first process.
        own: this process's; the same as the first one's if they share a disk.
    """
    missing = own != folder
    listed = {str(path.relative_to(own)): path.stat().st_size for path in own.rglob("*") if path.is_file() and missing}
    for rank, files in enumerate(gathered(listed if missing else {})):
        for name, size in files.items():
            for start in range(0, max(size, 1), _CHUNK_BYTES):
                chunk: list[Any] = [None]
                if dist.get_rank() == rank:
                    with (own / name).open("rb") as file:
                        file.seek(start)
                        chunk = [file.read(_CHUNK_BYTES)]
                dist.broadcast_object_list(chunk, src=rank)
                if dist.get_rank() == 0:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    with (folder / name).open("ab" if start else "wb") as file:
                        file.write(chunk[0])


def join_alone() -> None:
    """Create a group of one, in memory, unless this process is already in a group."""
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(_BACKENDS[chosen()], store=dist.HashStore(), rank=0, world_size=1)


def on_first(work: Callable[[], Result]) -> Result:
    """Run a function in the first process only; all processes get its result or its error.

    Raises:
        LightningError: raised by the function; any other error except OSError is converted to it, so that no process
            waits forever for a result.
        OSError: raised by the function.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except (LightningError, OSError) as error:
            outcome[1] = error
        except Exception as error:
            outcome[1] = TrainingError(f"the first process failed: {type(error).__name__}: {error}")
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def gathered(value: Result) -> list[Result]:
    """Return every process's value, in order of rank."""
    if dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
