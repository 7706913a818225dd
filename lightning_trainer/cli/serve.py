"""``lightning-trainer serve``: the daemon in the foreground; the first Ctrl-C stops it cleanly, the second at once."""

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from lightning_trainer.config import Config, load_config
from lightning_trainer.daemon.memory import settle_memory
from lightning_trainer.daemon.progress import Phase
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.metrics.terminal import step_line

_SAME_KEYSTROKE_S = 1.0
"""A shell, make or a time-out may pass one Ctrl-C on twice."""


def serve(config_path: Path, *, verbose: bool) -> None:
    """Run until SIGINT or SIGTERM.

    Raises:
        LightningError: it cannot start; the message is for the user.
    """
    config = load_config(config_path)
    console = Console(stderr=True)
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_path=False, rich_tracebacks=False)],
    )
    for noisy in ("httpx", "httpcore", "asyncio", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    settle_memory()
    asyncio.run(_run(config, console))


async def _run(config: Config, console: Console) -> None:
    daemon = Daemon(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    first_at = 0.0

    def on_signal() -> None:
        nonlocal first_at
        if not stop.is_set():
            first_at = time.monotonic()
            console.print("stopping; once more to stop at once")
            stop.set()
        elif time.monotonic() - first_at > _SAME_KEYSTROKE_S:
            os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    watcher = asyncio.create_task(_narrate(daemon, console))
    try:
        await daemon.run(stop)
    finally:
        watcher.cancel()
    console.print("stopped")


async def _narrate(daemon: Daemon, console: Console) -> None:
    """Say in one line each when a phase of note begins and how every step went; problems in words as they come."""
    said = ""
    told: set[str] = set()
    rows_told: int | None = None
    policy = daemon.config.only_policy
    while True:
        if daemon.url and not said:
            said = "listening"
            console.print(f"listening on {daemon.url}; engine and trainer are starting, calls wait until then")
        phase = daemon.progress.phase
        line = f"{phase} {daemon.progress.detail}".strip()
        if phase is not Phase.STARTING and line != said:
            if phase is Phase.COLLECTING and daemon.progress.steps_done == 0:
                console.print(f"ready: policy {policy.name!r} for agents {', '.join(policy.agents)}")
            elif phase is not Phase.COLLECTING:
                console.print(line)
            said = line
        rows = daemon.metrics.rows if daemon.metrics is not None else []
        if rows_told is None and phase is not Phase.STARTING:
            rows_told = len(rows)  # those of an earlier run of the daemon
        if rows_told is not None:
            for row in rows[rows_told:]:
                console.print(step_line(row), markup=False, highlight=False, soft_wrap=True)
            rows_told = len(rows)
        for problem in daemon.progress.problems:
            if problem not in told:
                told.add(problem)
                console.print(f"[yellow]note:[/] {problem}")
        await asyncio.sleep(0.2)
