"""Tells systemd, where it has started us and asks for it, that we serve, what we are doing, and that we are alive.

Source: sd_notify(3) and sd_watchdog_enabled(3). A ``Type=notify`` unit counts as started when the daemon listens; with
``WatchdogSec=`` a daemon whose event loop stands still is ended and started again.
"""

import asyncio
import os
import socket
from collections.abc import Mapping

from lightning_trainer.daemon.service import Daemon

_LOOK_AGAIN_S = 0.2
_EVERY_S = 10.0


async def keep_told(daemon: Daemon, environment: Mapping[str, str] = os.environ) -> None:
    """Say so until cancelled; return at once where nobody asks."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    every_s = min(_EVERY_S, _watchdog_s(environment) / 2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        name = "\0" + address[1:] if address.startswith("@") else address
        while daemon.url is None:
            await asyncio.sleep(_LOOK_AGAIN_S)
        _say(channel, name, "READY=1")
        try:
            while True:
                _say(channel, name, f"WATCHDOG=1\nSTATUS={_summary(daemon)}")
                await asyncio.sleep(every_s)
        finally:
            _say(channel, name, "STOPPING=1\nSTATUS=stopping")


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return within what time it wants to hear from us."""
    asked_of = environment.get("WATCHDOG_PID", str(os.getpid()))
    micros = environment.get("WATCHDOG_USEC", "")
    return int(micros) / 1e6 if micros.isdecimal() and int(micros) > 0 and asked_of == str(os.getpid()) else 3600.0


def _summary(daemon: Daemon) -> str:
    said = (f"{one.policy.name}: {one.progress.phase}, {one.progress.steps_done} steps" for one in daemon.policies)
    return "; ".join(said) or f"recording at {daemon.url}"


def _say(channel: socket.socket, name: str, message: str) -> None:
    try:
        channel.sendto(message.encode(), name)
    except OSError:
        return  # nobody listens, or not now: the next message says the same
