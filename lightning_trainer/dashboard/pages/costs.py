"""Costs: tokens, seconds of engine and trainer, and processor time, by policy, agent and step."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.pages.overview import STAGES
from lightning_trainer.dashboard.reading.history import SHOWN_STEPS, AgentTokens, known_policies, tokens_by_agent
from lightning_trainer.dashboard.site import PolicyNow, Site
from lightning_trainer.metrics.row import StepMetrics, select_rows
from lightning_trainer.store.connection import Connection

_LISTED = 30


@dataclass(frozen=True, slots=True)
class PolicyCost:
    """What the newest steps of a policy cost: seconds by stage, and tokens."""

    name: str
    steps: int
    seconds: Mapping[str, float]
    trained: float
    computed: float
    sequential: float
    sampled: float
    """Tokens that its rollouts sampled, trained or not."""
    agents: Sequence[AgentTokens]
    rows: Sequence[StepMetrics]
    """Rows of the newest steps, newest first."""

    @property
    def all_seconds(self) -> float:
        """Return the seconds of all stages."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """The processor time and resident memory of a running process."""

    what: str
    pid: int
    cpu_seconds: float
    memory_bytes: int


async def costs(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the cost of every policy, agent, and process."""

    def read(connection: Connection) -> list[PolicyCost]:
        return [
            _cost(name, rows, tokens_by_agent(connection, name, rows[0].step, rows[-1].step) if rows else [])
            for name in known_policies(connection)
            for rows in (select_rows(connection, name, newest=SHOWN_STEPS),)
        ]

    policies = await site.store.scan(read)
    seen = await site.census.get()
    now = {} if site.live is None else site.live.now()
    return {
        "policies": policies,
        "stages": STAGES,
        "listed": _LISTED,
        "shown_steps": SHOWN_STEPS,
        "seen": sorted(seen.agents, key=lambda one: -(one.prompt_tokens + one.sampled_tokens)),
        "spans_read": seen.spans_read,
        "spans_held": seen.spans_held,
        "processes": await asyncio.to_thread(_processes, now) if site.live is not None else [],
    }


def _cost(name: str, rows: Sequence[StepMetrics], agents: Sequence[AgentTokens]) -> PolicyCost:
    def total(metric: str) -> float:
        return sum(row.values.get(metric, 0.0) for row in rows)

    return PolicyCost(
        name=name,
        steps=len(rows),
        seconds={stage: total(f"seconds/{stage}") for stage in STAGES},
        trained=total("tokens/trained"),
        computed=total("tokens/computed"),
        sequential=total("tokens/sequential"),
        sampled=sum(sum(one.tokens.values()) for one in agents),
        agents=agents,
        rows=rows[::-1][:_LISTED],
    )


def _processes(now: Mapping[str, PolicyNow]) -> list[ProcessCost]:
    wanted: dict[int, str] = {os.getpid(): "daemon"}
    for name, policy in now.items():
        for what, pid in policy.processes.items():
            if pid is not None:
                wanted.setdefault(pid, f"{what.replace('_', ' ')} of {name}")
    found = []
    for pid, what in wanted.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
            found.append(ProcessCost(what, pid, times.user + times.system, memory.rss))
        except psutil.Error:
            continue
    return found
