"""Tries frameworks one after the other, against one scripted engine and one daemon."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common import stored
from benchmarks.common.processes import Child
from benchmarks.common.servers.daemon import STORE
from benchmarks.frameworks import beside
from benchmarks.frameworks.beside import Beside
from benchmarks.frameworks.known import Framework
from benchmarks.frameworks.verdict import Cell, cells_of
from benchmarks.frameworks.ways import CLAIMED, COLUMNS, WAYS, Servers, Way, log_of, run

_QUIET_S = 10.0
"""After so long without an arrival, spans that are missing count as lost."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What trying one framework showed."""

    framework: Framework
    cells: dict[str, Cell | str]
    """By column; a text says why nothing is captured there."""
    beside: Beside | None = None

    @property
    def whole(self) -> bool:
        """Whether every cell is complete or explained, and no other instrumentation is disturbed."""
        named = (not cell.startswith("**") if isinstance(cell, str) else cell.complete for cell in self.cells.values())
        return all(named) and (self.beside is None or self.beside.whole)


def tried(chosen: Sequence[Framework], folder: Path) -> Iterator[Tried]:
    """Yield what trying each framework showed.

    Args:
        folder: takes the store, and the programs' standard error.
    """
    environment = {"LIGHTNING_SPOOL_DIR": str(folder / "spool")}
    with Child("common.servers.engine", "--keep-telemetry") as engine:
        engine_url = engine.read()["url"]
        arguments = ("--folder", folder, "--engine", engine_url, "--claims", CLAIMED)
        with Child(
            "common.servers.daemon", *arguments, environment=environment, errors=folder / "daemon.log"
        ) as daemon:
            servers = Servers(engine_url, daemon.read()["url"])
            for framework in chosen:
                began_s = time.monotonic()
                yield _try(framework, servers, folder)
                print(f"{framework.title}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)


def _try(framework: Framework, servers: Servers, folder: Path) -> Tried:
    if framework.version is None:
        # Python's packages are installed, or `make` would have failed; Node's are missing if there is no npm.
        return Tried(framework, dict.fromkeys(COLUMNS, _not_installed(framework)))
    failed: dict[str, str] = {}
    named: dict[str, Cell | str] = {}
    seen = Beside() if framework.beside else None
    counted = beside.calls_counted(folder, os.environ) if seen is not None else 0
    if seen is not None:
        seen.run_alone(framework, servers, folder)
    for way in WAYS:
        if framework.elsewhere is not None and way.name not in framework.captured_in:
            named |= _not_captured(framework, way, servers, folder)
        else:
            failed |= run(framework, way, servers, folder)
        if seen is not None:
            seen.take(way, servers)
    truth = httpx.get(f"{servers.engine}/truth", timeout=60).json()
    stored.wait_for(folder / STORE, sys.maxsize, quiet_s=_QUIET_S if failed else 1.0)
    cells = cells_of(framework.name, truth, stored.spans(folder / STORE), failed)
    if any(not cell.complete for column, cell in cells.items() if column not in named):
        stored.wait_for(folder / STORE, sys.maxsize, quiet_s=_QUIET_S)
        cells = cells_of(framework.name, truth, stored.spans(folder / STORE), failed)
    if seen is not None:
        seen.made = len(truth)
        seen.counted = beside.calls_counted(folder, os.environ) - counted
    return Tried(framework, {**cells, **named}, seen)


def _not_installed(framework: Framework) -> str:
    return "not installed (npm could not)" if framework.venv is None else "**not installed**: make frameworks does it"


def _not_captured(framework: Framework, way: Way, servers: Servers, folder: Path) -> dict[str, Cell | str]:
    """Run the program all the same if that is possible, and check that the terminal says that nothing is captured."""
    reason = f"not captured: {framework.elsewhere}"
    if framework.venv is None and way.name != "run":
        return dict.fromkeys(way.parts, reason)  # there is no decorator for it
    run(framework, way, servers, folder)
    said = log_of(framework, way, folder).read_text(errors="replace")
    if framework.said in said:
        return dict.fromkeys(way.parts, f"{reason}, and the terminal says so")
    return dict.fromkeys(way.parts, f"**silent**: {reason}, and nothing says so")
