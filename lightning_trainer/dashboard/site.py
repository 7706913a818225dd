"""What the pages are given: a store to read, a configuration, and a daemon that is asked, where one runs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config, PolicyConfig, any_agent
from lightning_trainer.dashboard.reading.summaries import SummaryCache
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import StorePlace, reading
from lightning_trainer.store.tables import spans as span_table

Result = TypeVar("Result")


class Snapshots(Protocol):
    """A store, as far as it is read here."""

    async def last_span(self) -> int: ...

    async def scan(self, query: Callable[[Connection], Result]) -> Result: ...


class StoppedStore:
    """The store of a stopped run: every question opens it for reading, so nothing is written and nobody is kept out.

    Questions raise StoreError where it is not there or is not a store.
    """

    def __init__(self, place: StorePlace) -> None:
        self._place = place

    async def last_span(self) -> int:
        return await self.scan(span_table.last)

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        def read() -> Result:
            with reading(self._place) as connection:
                return query(connection)

        return await asyncio.to_thread(read)


@dataclass(frozen=True, slots=True)
class PolicyNow:
    """What a running daemon does with one policy."""

    phase: str
    detail: str
    since: float
    """Unix seconds."""
    steps_done: int
    engine: str
    """State of the engine that serves it."""
    warnings: Mapping[str, str]
    """What is wrong at the newest step, by rule."""
    problems: Sequence[str]
    """What the loop had to say, newest last."""
    ready_groups: int = 0
    groups_wanted: int = 0
    paused: str | None = None
    """Why training was paused by a person; None where it was not."""
    processes: Mapping[str, int | None] = field(default_factory=dict)
    """Process ids by what the process is."""


class Check(Protocol):
    """One finding of ``doctor``."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def found(self) -> str: ...

    @property
    def mend(self) -> str | None: ...


class Live(Protocol):
    """A running daemon: what it does, and what may be asked of it. Each action returns what it says of its success.

    Every action raises LightningError where it cannot be done; the message is for the person who asked.
    """

    def now(self) -> Mapping[str, PolicyNow]: ...

    async def refresh_scores(self) -> None:
        """Read some of the evaluations that nobody has read yet."""
        ...

    async def roll_back(self, policy: str, version: int) -> str: ...

    async def promote(self, policy: str, version: int) -> str: ...

    async def pause(self, policy: str, reason: str) -> str: ...

    async def resume(self, policy: str) -> str: ...

    async def label(
        self, rollout_id: str, *, attempt_id: str | None, reward: float | None, name: str, note: str | None
    ) -> str: ...

    async def drop(self, name: str, *, reason: str) -> str: ...


@dataclass(frozen=True)
class Site:
    """One store, shown."""

    config: Config
    store: Snapshots
    census: LiveCensus
    url: str
    """Where the daemon listens; of a stopped run, where it would."""
    live: Live | None = None
    """None: the run is stopped and nothing can be asked for."""
    checks: Callable[[], Sequence[Check]] | None = None
    """What ``doctor`` finds; None where it cannot be asked."""
    summaries: SummaryCache = field(default_factory=SummaryCache)

    @property
    def state_dir(self) -> Path:
        return self.config.daemon.state_dir

    @property
    def policies(self) -> Sequence[PolicyConfig]:
        return self.config.policy

    def policy_of(self, name: str | None) -> PolicyConfig:
        """Return the policy of that name, else the first one, else one that claims every agent."""
        named = next((policy for policy in self.policies if policy.name == name), None)
        return named or next(iter(self.policies), None) or any_agent()
