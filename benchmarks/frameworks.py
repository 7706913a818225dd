"""Frameworks that have no adapter of ours, each in several ways, against a scripted engine whose log is the truth.

    make frameworks                                            # installs them first, each set in its own environment
    python benchmarks/frameworks.py --only agno_agent,litellm_call
    python benchmarks/frameworks.py --write docs/frameworks.md # and put the table there

A cell is complete when every call that the engine answered is in the daemon's store exactly once, with the same token
ids, log-probabilities and agent. The exit status is 1 where a cell is not.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
from capture_parts import stored
from capture_parts.daemon import STORE
from capture_parts.processes import Child
from capture_parts.sections import among
from frameworks_parts import table
from frameworks_parts.known import KNOWN, Framework
from frameworks_parts.verdict import Cell, cells_of
from frameworks_parts.ways import CLAIMED, COLUMNS, WAYS, Servers, run

_QUIET_S = 10.0
"""How long nothing may arrive until what is missing counts as lost."""


def main() -> int:
    names = {framework.name: framework.title for framework in KNOWN}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(names), default=list(names), help=", ".join(names))
    parser.add_argument("--write", type=Path, help="put the table into this page")
    parser.add_argument("--here", action="store_true", help="Python programs run in this environment, not their own")
    parser.add_argument("--keep", type=Path, help="folder for the store and the programs' output")
    options = parser.parse_args()
    chosen = [framework for framework in KNOWN if framework.name in options.only]
    if options.here:
        chosen = [replace(one, venv=one.venv and Path(sys.prefix)) for one in chosen]
    rows: dict[str, str] = {}
    whole = True
    with tempfile.TemporaryDirectory(prefix="lightning-frameworks-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for framework, cells in _tried(chosen, folder.resolve()):
            rows[framework.name] = table.row(framework, cells)
            print(rows[framework.name], flush=True)
            whole &= all(isinstance(cell, str) or cell.complete for cell in cells.values())
            if options.write:
                table.write(options.write, rows)
    return 0 if whole else 1


def _tried(chosen: Sequence[Framework], folder: Path) -> Iterator[tuple[Framework, dict[str, Cell | str]]]:
    environment = {"LIGHTNING_SPOOL_DIR": str(folder / "spool")}
    with Child("engine") as engine:
        engine_url = engine.read()["url"]
        arguments = ("--folder", folder, "--engine", engine_url, "--claims", CLAIMED)
        with Child("daemon", *arguments, environment=environment, errors=folder / "daemon.log") as daemon:
            servers = Servers(engine_url, daemon.read()["url"])
            for framework in chosen:
                yield framework, _cells(framework, servers, folder)


def _cells(framework: Framework, servers: Servers, folder: Path) -> dict[str, Cell | str]:
    if framework.version is None:
        return dict.fromkeys(COLUMNS, "not installed")
    began_s = time.monotonic()
    failed: dict[str, str] = {}
    absent: dict[str, str] = {}
    for way in WAYS:
        if way.in_process and framework.elsewhere is not None:
            absent |= dict.fromkeys(way.parts, f"not captured: {framework.elsewhere}")
        else:
            failed |= run(framework, way, servers, folder)
    truth = httpx.get(f"{servers.engine}/truth", timeout=60).json()
    stored.wait_for(folder / STORE, sys.maxsize, quiet_s=_QUIET_S if failed else 1.0)
    cells = cells_of(framework.name, truth, stored.spans(folder / STORE), failed)
    if any(not cell.complete for column, cell in cells.items() if column not in absent):
        stored.wait_for(folder / STORE, sys.maxsize, quiet_s=_QUIET_S)
        cells = cells_of(framework.name, truth, stored.spans(folder / STORE), failed)
    print(f"{framework.title}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return {**cells, **absent}


if __name__ == "__main__":
    sys.exit(main())
