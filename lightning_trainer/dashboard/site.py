"""What pages are made from: a store to read, a configuration, and the daemon, if one is running."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    """The part of a store that the pages read."""

    async def last_span(self) -> int:
        """Return the number of the newest span; 0 if there is none. Numbers only increase."""
        ...

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        """Run a query on one snapshot, and return its result."""
        ...


class StoppedStore:
    """The store of a stopped run: every query opens it for reading, so nothing is written and no daemon is locked out.

    Queries raise StoreError if it does not exist or is not a store.
    """

    def __init__(self, place: StorePlace) -> None:
        self._place = place

    async def last_span(self) -> int:
        """Return the number of the newest span; 0 if there is none."""
        return await self.scan(span_table.last)

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        """Run a query in a thread, on a connection of its own, and return its result."""

        def read() -> Result:
            with reading(self._place) as connection:
                return query(connection)

        return await asyncio.to_thread(read)


@dataclass(frozen=True, slots=True)
class PolicyNow:
    """What a running daemon is doing with one policy."""

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
    """Messages of the loop, newest last."""
    ready_groups: int = 0
    groups_wanted: int = 0
    paused: str | None = None
    """Why someone paused training; None: it is not paused."""
    processes: Mapping[str, int | None] = field(default_factory=dict)
    """Process ids, by the role of the process."""
    served: int | None = None
    """The version that its engine answers with; None while the engine is down."""


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
    """A running daemon: its state and its actions. Each action returns a sentence about its outcome.

    Every action raises LightningError if it cannot be done; the message is for the person who asked.
    """

    def now(self) -> Mapping[str, PolicyNow]:
        """Return what the daemon does with each policy, by the policy's name."""
        ...

    @property
    def write_failure(self) -> str | None:
        """Why the store cannot be written; None: it can."""
        ...

    async def refresh_scores(self) -> Mapping[str, int]:
        """Read evaluations that have not been read yet, for a moment; return how many are left, by policy."""
        ...

    async def roll_back(self, policy: str, version: int) -> str:
        """Serve an earlier version, and continue training from it."""
        ...

    async def promote(self, policy: str, version: int) -> str:
        """Serve a version that is held back, whatever its comparison with the live version says."""
        ...

    async def pause(self, policy: str, reason: str) -> str:
        """Pause training until it is resumed; serving and capture continue."""
        ...

    async def resume(self, policy: str) -> str:
        """Resume training that was paused."""
        ...

    async def label(
        self, rollout_id: str, *, attempt_id: str | None, reward: float | None, name: str, note: str | None
    ) -> str:
        """Give a rollout, or one of its attempts, a reward, a note, or both."""
        ...

    async def drop(self, name: str, *, reason: str) -> str:
        """Exclude a rollout's attempts from training, except those that a step has already taken."""
        ...


@dataclass(frozen=True)
class Site:
    """Everything that the pages of one store need."""

    config: Config
    store: Snapshots
    census: LiveCensus
    url: str
    """Where the daemon listens, or would listen if the run were not stopped."""
    live: Live | None = None
    """None: the run is stopped, so there are no actions."""
    checks: Callable[[], Sequence[Check]] | None = None
    """Runs the checks of ``doctor``; None if they cannot be run."""

    @cached_property
    def summaries(self) -> SummaryCache:
        """Return the cache of rollouts' summaries, made at its first use."""
        return SummaryCache(self.config.judge)

    @property
    def state_dir(self) -> Path:
        """Return the daemon's folder."""
        return self.config.daemon.state_dir

    @property
    def policies(self) -> Sequence[PolicyConfig]:
        """Return the configured policies, in order."""
        return self.config.policy

    def policy_of(self, name: str | None) -> PolicyConfig:
        """Return the policy of that name, else the first one, else one that claims every agent."""
        named = next((policy for policy in self.policies if policy.name == name), None)
        return named or next(iter(self.policies), None) or any_agent()
