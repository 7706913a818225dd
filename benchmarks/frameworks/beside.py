"""What another instrumentation sends with ours and without, and how often `lightning-trainer agents` counts its calls.

The instrumentation's spans are delivered to the daemon as well, so that two report each call: it has to be counted
once.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.common.servers.daemon import POLICY
from benchmarks.frameworks import theirs
from benchmarks.frameworks.known import Framework
from benchmarks.frameworks.ways import WAYS, Servers, Way, run

COLUMNS = (*(way.name for way in WAYS if way.in_process), "`agents` counts")
"""Of the second table; ``ways`` says how the first columns are made."""


@dataclass(slots=True)
class Beside:
    """One instrumentation's row."""

    alone: dict[str, Counter[theirs.Told]] = field(default_factory=dict)
    """What it sends alone, by way."""
    changes: dict[str, list[str]] = field(default_factory=dict)
    made: int = 0
    """Calls that the engine answered."""
    counted: int = 0

    def run_alone(self, framework: Framework, servers: Servers, folder: Path) -> None:
        """Run the program without ours, in each way."""
        for way in WAYS:
            if way.in_process:
                run(framework, way, servers, folder, ours=False)
                self.alone[way.name] = theirs.told(_sent(servers))
        httpx.get(f"{servers.engine}/truth", timeout=60)  # makes the engine forget those calls

    def take(self, way: Way, servers: Servers) -> None:
        """Compare what was sent next to ours with what was sent alone, and deliver it to the daemon."""
        sent = _sent(servers)
        if not way.in_process:
            return  # nothing of ours is in that process
        beside = theirs.told(sent, answered_by=POLICY if way.name == "routed" else None)
        self.changes[way.name] = theirs.changes(self.alone[way.name], beside)
        for body in sent:
            headers = {"content-type": "application/x-protobuf"}
            httpx.post(f"{servers.daemon}/v1/traces", content=body, headers=headers, timeout=60).raise_for_status()

    @property
    def whole(self) -> bool:
        return all(self.alone.values()) and not any(self.changes.values()) and self.made == self.counted

    def cells(self) -> dict[str, str]:
        by_way = {way: self._unchanged(way) for way in self.alone}
        counted = f"{self.counted} of {self.made} calls"
        return {**by_way, COLUMNS[-1]: counted if self.counted == self.made else f"**{counted}**"}

    def _unchanged(self, way: str) -> str:
        number = sum(self.alone[way].values())
        if not number:
            return "**no span**"
        if self.changes[way]:
            return f"**changed**: {self.changes[way][0]}"
        return f"unchanged ({number} span{'s' * (number != 1)})"


def calls_counted(folder: Path, environment: Mapping[str, str]) -> int:
    """Return how many calls of all agents `lightning-trainer agents` counts in the daemon's store."""
    command = [sys.executable, "-m", "lightning_trainer", "agents", "--state-dir", str(folder), "--json"]
    done = subprocess.run(command, env=dict(environment), cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"lightning-trainer agents: {done.stderr.strip()}")
    return sum(row["calls"] for row in json.loads(done.stdout)["agents"])


def _sent(servers: Servers) -> list[bytes]:
    return theirs.bodies(httpx.get(f"{servers.engine}/telemetry", timeout=60).json())
