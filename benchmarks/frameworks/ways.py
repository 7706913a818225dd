"""The ways in which each framework is tried: how much of ours is in the program, and where its calls go.

| way | lines of ours | where its calls go |
|---|---|---|
| zero lines | none: ``lightning-trainer run`` | the engine, a host that the user named |
| at once | none, four tasks at once, streamed | the engine |
| decorator | two | the engine |
| routed | two; the agent is one that a policy claims | the gateway; the program names a host that does not answer |
| base URL | none, and no client of ours | the gateway, at the URL of a rollout |
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frameworks.known import NODE_MODULES, Framework
from benchmarks.frameworks.program import AGENT

CLAIMED = "claimed"
"""The agent whose calls the daemon's policy takes."""
NOWHERE = "http://127.0.0.1:9/v1"
"""Nothing listens there: a call that is not routed fails."""
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    parts: Mapping[str, str]
    """By column of the table, the options of that part of the program."""
    in_process: bool = True
    """Whether our client captures in the program's own process."""


AT_ONCE = "at-once=4;stream"
WAYS = (
    Way("run", {"zero lines": "", "four at once, streamed": AT_ONCE}),
    Way("decorated", {"decorator": f"agent={AGENT}"}),
    Way("routed", {"decorator, routed": f"agent={CLAIMED};stream"}),
    Way("url", {"base URL": "", "base URL, four at once, streamed": AT_ONCE}, in_process=False),
)
COLUMNS = tuple(column for way in WAYS for column in way.parts)


def agent_of(column: str) -> str:
    """Return the agent's name that the calls of a column have to carry."""
    return CLAIMED if column == "decorator, routed" else AGENT


@dataclass(frozen=True, slots=True)
class Servers:
    engine: str
    daemon: str
    """Both are base URLs, without ``/v1``."""


def run(framework: Framework, way: Way, servers: Servers, folder: Path, *, ours: bool = True) -> dict[str, str]:
    """Run a framework's program once; return the columns that failed, and why.

    Args:
        ours: False: run it without anything of ours, directly against the engine.
    """
    parts = {column: f"{framework.name}/{column}" for column in way.parts}
    more = "" if ours else "without"
    words = [";".join(filter(None, (parts[column], options, more))) for column, options in way.parts.items()]
    command = _command(framework, way, words) if ours else [*framework.command, *words]
    log = log_of(framework, way, folder, ours=ours)
    own = _environment(framework, way, servers, folder) if ours else _without_ours(servers, folder)
    environment = {**os.environ, **framework.environment, **own}
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=errors, timeout=TIMEOUT_S
            )
            failed = _told(done.stdout)
        except subprocess.TimeoutExpired:
            return dict.fromkeys(way.parts, f"not done after {TIMEOUT_S} s")
        except OSError as error:
            return dict.fromkeys(way.parts, str(error))
    if failed is None or done.returncode:
        said = log.read_text(errors="replace").strip().splitlines()
        return dict.fromkeys(way.parts, said[-1] if said else f"ended with {done.returncode}")
    return {column: failed[part] for column, part in parts.items() if part in failed}


def log_of(framework: Framework, way: Way, folder: Path, *, ours: bool = True) -> Path:
    """Return the file that takes a program's standard error."""
    return folder / f"{framework.name}-{way.name}{'' if ours else '-alone'}.log"


def _without_ours(servers: Servers, folder: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": f"{servers.engine}/v1",
        "OPENAI_API_KEY": "unused",
        "TELEMETRY_URL": servers.engine,
        "NODE_PATH": str(NODE_MODULES),
        "HOME": str(folder),
    }


def _told(printed: bytes) -> dict[str, str] | None:
    """Return the failures that the program printed among what other libraries print; None: it did not get so far."""
    lines = [line for line in printed.splitlines() if line.startswith(b"{")]
    return json.loads(lines[-1]) if lines else None


def _command(framework: Framework, way: Way, words: Sequence[str]) -> list[str]:
    own = [*framework.command, *words]
    if way.name != "run":
        return own
    # Capture needs only the light client; the program's interpreter is the framework's.
    return [sys.executable, "-m", "lightning_trainer", "run", "--agent", AGENT, "--", *own]


def _environment(framework: Framework, way: Way, servers: Servers, folder: Path) -> dict[str, str]:
    paths = [str(ROOT / part) for part in ("", "instrumentation", "adapters")]
    base = f"{servers.engine}/v1"
    if way.name == "routed":
        base = NOWHERE
    elif way.name == "url":
        base = f"{servers.daemon}/rollouts/{framework.name}/agents/{AGENT}/v1"
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "OPENAI_BASE_URL": base,
        "OPENAI_API_KEY": "unused",
        "LIGHTNING_ENDPOINT": servers.daemon,
        "LIGHTNING_TRUSTED_HOSTS": servers.engine.removeprefix("http://"),
        "LIGHTNING_SPOOL_DIR": str(folder / "spool"),
        "TELEMETRY_URL": servers.engine,  # which takes OTLP
        "NODE_PATH": str(NODE_MODULES),
        "HOME": str(folder),
    }
