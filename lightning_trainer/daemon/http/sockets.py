"""The listening socket, bound before anything expensive starts so that a taken port is said at once."""

import errno
import socket

import psutil

from lightning_trainer.errors import AddressTakenError, ConfigError


def listen(host: str, port: int) -> socket.socket:
    """Bind and return the socket; ``port`` 0 takes a free one.

    Raises:
        ConfigError: the address cannot be bound; the message says who has it and what to change. AddressTakenError
            where somebody has it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only where the protocol is named; else an answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        kind = AddressTakenError if error.errno == errno.EADDRINUSE else ConfigError
        raise kind(
            f"cannot listen on {host}:{port}: {error.strerror}{_holder(port)}; "
            "stop it or set another port in [daemon] (0 picks a free one)"
        ) from error
    return listener


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f" (process {connection.pid}, {psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""
