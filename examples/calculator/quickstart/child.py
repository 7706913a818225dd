"""A child process that never outlives the block that started it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

_STOP_TIMEOUT_S = 90.0
_STARTED = "--- started at"
"""Begins each process's lines: when an interrupted run continues, so does its log."""
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def running(
    name: str, run_dir: Path, command: list[str], environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Run ``command`` for as long as the block lasts, and yield it with its log, ``run_dir/name.log``.

    The process is asked to end when the block ends, however that happens, and killed after 90 seconds. The caller must
    be in the main thread, which handles signals.
    """
    log = run_dir / f"{name}.log"
    child = None
    try:
        with log.open("ab") as file, _held_signals():
            file.write(f"{_STARTED} {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())
            file.flush()
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops its children in order
            )
        yield child, log
    finally:
        if child is not None:
            _stop(child)


def said_since_start(log: Path) -> list[str]:
    """Return the lines, none of them empty, that the newest process wrote into its log."""
    said: list[str] = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if line.startswith(_STARTED):
            said = []
        elif line.strip():
            said.append(line)
    return said


def _stop(child: subprocess.Popen) -> None:
    if child.poll() is not None:
        return
    child.terminate()  # not SIGINT, which children of a background job ignore
    try:
        child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextmanager
def _held_signals() -> Iterator[None]:
    """Hold back signals that would end this process until the block has ended.

    ``Popen`` returns some time after the child has started; a signal whose handler raises in between would leave a
    child that nothing keeps track of. A mask that blocks signals would do, too, but the child would inherit it.
    """
    held: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in _ENDING_SIGNALS
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
