"""``lightning-trainer serve``: the daemon in the foreground; the first Ctrl-C stops it cleanly, the second at once.

If systemd started us and asks for it, we tell it that we serve, what we are doing, and that we are alive. Source:
sd_notify(3) and sd_watchdog_enabled(3). A ``Type=notify`` unit counts as started when the daemon listens, however
long that takes; with ``WatchdogSec=`` a daemon whose event loop hangs is ended and started again.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.logging import RichHandler

from lightning_trainer.cli.doctor import run_checks
from lightning_trainer.cli.terminal.console import TerminalConsole, visible
from lightning_trainer.cli.terminal.narration import narrate
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.hardware.loan import settle_memory
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.errors import (
    AddressTakenError,
    ConfigError,
    DatasetError,
    DownloadError,
    LightningError,
    MissingExtraError,
    ModelError,
    UnusableStoreError,
)

# Exit statuses of ``lightning-trainer serve``, for whatever starts it again; the numbers are sysexits.h's.
#
# 0 after SIGINT or SIGTERM, 130 after a second one. 78: the configuration cannot be run, and another start would end in
# the same way. 75: something was not available (a port, the store, an engine), but may be at the next start. 1: a bug.

CONFIG = 78
TEMPORARY = 75
_FOR_PEOPLE = (ConfigError, ModelError, MissingExtraError, DatasetError, UnusableStoreError)
_PASSING = (AddressTakenError, DownloadError)


def exit_status(error: LightningError) -> int:
    """Return the status that says whether another start may help."""
    return CONFIG if isinstance(error, _FOR_PEOPLE) and not isinstance(error, _PASSING) else TEMPORARY


_OF_A_START = ("port", "memory", "shared memory")
"""Checks of ``doctor`` that a running daemon skips, because it has taken these resources itself."""
_SAME_KEYSTROKE_S = 1.0
"""A shell, make or a time-out may pass on one Ctrl-C twice within this time."""


def serve(config_path: Path | None, *, verbose: bool) -> None:
    """Run until SIGINT or SIGTERM.

    Args:
        config_path: None: ``lightning.toml`` if it exists, else the defaults, with which the daemon only records.

    Raises:
        LightningError: the daemon cannot start; the message is for the user.
    """
    os.umask(0o077)  # only the owner may read the store, logs and weights' folders: prompts and answers are in them
    config = load_usual_config(config_path)
    console = ServeConsole(stderr=True)
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        handlers=[log_handler(console)],
    )
    for noisy in ("httpx", "httpcore", "asyncio", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    settle_memory()
    # A call of the gateway takes an eighth less CPU time than on asyncio's own loop.
    uvloop.run(_run(config, config_path, console))


class ServeConsole(TerminalConsole):
    """A console that loses output rather than end the daemon, as when the disk is full or the reader is gone."""

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Do nothing; rich would end the process."""


class _Lines(logging.Formatter):
    """Puts a record on one line; further lines, as of a traceback, are indented so that no text looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record)).replace("\n", "\n  ")


def log_handler(console: Console) -> logging.Handler:
    """Return the log's handler: folded and in colors for a terminal, one record per line for a journal or a file."""
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, rich_tracebacks=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    return handler


async def _run(config: Config, config_path: Path | None, console: Console) -> None:
    daemon = Daemon(config, checks=lambda: [check for check in run_checks(config) if check.name not in _OF_A_START])
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    first_at = 0.0

    def on_signal() -> None:
        nonlocal first_at
        if not stop.is_set():
            first_at = time.monotonic()
            stop.set()  # before anything is printed, which may fail
            console.print("stopping; once more to stop at once")
        elif time.monotonic() - first_at > _SAME_KEYSTROKE_S:
            os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    watchers = [asyncio.create_task(narrate(daemon, console, config_path)), asyncio.create_task(keep_told(daemon))]
    try:
        await daemon.run(stop)
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    console.print("stopped")
    if daemon.url is None:
        # A download or an upgrade of the store is in a thread that nothing ends, and Python would wait for it. Both may
        # be killed: the next start resumes them.
        os._exit(0)


_LOOK_AGAIN_S = 0.2
_EVERY_S = 10.0
_STARTING = "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=starting: the store is opened, and models are fetched"
"""An upgrade or a download may take longer than ``TimeoutStartSec=``."""


async def keep_told(daemon: Daemon, environment: Mapping[str, str] = os.environ) -> None:
    """Keep systemd informed about the daemon until canceled; return at once if it does not ask."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    every_s = min(_EVERY_S, _watchdog_s(environment) / 2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        name = "\0" + address[1:] if address.startswith("@") else address
        try:
            said_at = -math.inf
            while daemon.url is None:
                if time.monotonic() - said_at >= _EVERY_S:
                    said_at = time.monotonic()
                    _say(channel, name, _STARTING)
                await asyncio.sleep(_LOOK_AGAIN_S)
            _say(channel, name, "READY=1")
            while True:
                _say(channel, name, f"WATCHDOG=1\nSTATUS={_summary(daemon)}")
                await asyncio.sleep(every_s)
        finally:
            _say(channel, name, "STOPPING=1\nSTATUS=stopping")


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the seconds within which systemd wants to hear from us; an hour if it does not ask."""
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
        return  # no one listens, or not now: the next message says the same
