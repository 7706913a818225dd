"""The listening socket, bound before anything expensive starts so that a taken port is reported at once."""

import errno
import socket

import psutil

from lightning_trainer.errors import AddressTakenError, ConfigError

PORT = "port in [daemon]"
"""Where the daemon's port is set, as an error says it."""


def bind(host: str, port: int, setting: str = PORT) -> socket.socket:
    """Bind and return the socket; ``port`` 0 takes a free one.

    Clients cannot connect before ``listen``: the daemon's work until then may take a minute, and a client that is
    refused tries again or goes elsewhere, while one that is queued would only wait.

    Args:
        setting: where the user set the port, for the message.

    Raises:
        ConfigError: the address cannot be bound; the message says which process has it and what to change. It is an
            AddressTakenError if a process has it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the socket names its protocol; else an answer waits 40 ms for an ACK.
    try:
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:  # a machine without IPv6
        raise _unusable(host, port, error, setting) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error, setting) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Accept connections on a bound socket.

    Raises:
        AddressTakenError: another process had bound the address as well, and listened first.
    """
    try:
        listener.listen(1024)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _unusable(host, port, error) from error


def _unusable(host: str, port: int, error: OSError, setting: str = PORT) -> ConfigError:
    said = f"cannot listen on {host}:{port}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        return AddressTakenError(f"{said}{_holder(port)}; stop it or set another {setting} (0 picks a free one)")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(f"{said}; set another {setting}: this one is not for every user")
    return ConfigError(f"{said}; set host in [daemon] to a name or an address of this machine")


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f" (process {connection.pid}, {psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""
