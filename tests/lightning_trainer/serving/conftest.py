"""Engines that start, take versions and die as a test plans it, under real supervisors."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config import EngineConfig
from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.supervisor import Backoff, EngineSupervisor, Heartbeat

QUICK = Backoff(first_s=0.001, longest_s=0.002, attempts=3)


class FakeEngine:
    """A process that starts and dies when told to."""

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.exited = asyncio.get_running_loop().create_future()
        self.pid = 100 + len(plan.engines)
        self.node: str | None = None
        self.base_url = f"http://engine-{self.pid}"
        self.headers = {"Authorization": f"Bearer {self.pid}"}
        self.published: list[int] = []
        self.stopped = False
        self.killed = False
        self.asleep = 0
        plan.engines.append(self)

    async def start(self) -> None:
        if self.plan.surprises:
            raise self.plan.surprises.pop(0)

    async def ready(self, timeout_s: float) -> None:
        if self.plan.killed_starts:
            self.plan.killed_starts -= 1
            self.killed = True
            raise EngineError("the engine did not start: it was killed")
        if self.plan.start_s:
            await asyncio.wait({self.exited}, timeout=self.plan.start_s)
        if self.exited.done():
            raise EngineError(f"the engine did not start: {self.exited.result()}")
        if self.plan.start_errors:
            raise EngineError(self.plan.start_errors.pop(0))

    async def bring(self, publication: Publication) -> None:
        self.plan.brought.append(publication.version)

    async def publish(self, publication: Publication) -> PublicationReport:
        await self.plan.drained.wait()
        if publication.version in self.plan.deadly | self.plan.deadly_once:
            self.plan.deadly_once.discard(publication.version)
            self.die("a segmentation fault")
            raise EngineError("the engine did not answer")
        if publication.version in self.plan.unreadable_once:
            self.plan.unreadable_once.discard(publication.version)
            raise PublicationError("the engine refused POST /lightning/weights: no such file")
        if publication.version in self.plan.refused:
            return PublicationReport(False, self.published[-1] if self.published else 0, "it differs")
        self.published.append(publication.version)
        return PublicationReport(True, publication.version)

    async def sleep(self, level: int) -> None:
        if self.plan.sleepless:
            raise EngineError("it cannot sleep")
        self.asleep = level

    async def wake(self) -> None:
        if self.plan.wake_errors:
            raise self.plan.wake_errors.pop(0)
        if self.plan.sleepless:
            raise EngineError("it cannot wake")
        self.asleep = 0

    async def version(self, policy: str | None = None) -> int:
        if self.plan.hanging is self:
            await asyncio.Event().wait()
        return self.published[-1] if self.published else 0

    def die(self, reason: str) -> None:
        if not self.exited.done():
            self.exited.set_result(reason)

    async def stop(self) -> None:
        if not self.stopped:
            await asyncio.sleep(self.plan.stop_s)
        self.stopped = True
        self.die("it was stopped")


class Plan:
    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []
        self.brought: list[int] = []
        """Versions whose file was brought before they were offered."""
        self.start_errors: list[str] = []
        self.start_s = 0.0
        self.stop_s = 0.0
        """How long a start and an end take."""
        self.wake_errors: list[Exception] = []
        self.surprises: list[Exception] = []
        """What starts end in, one after the other."""
        self.killed_starts = 0
        self.deadly: set[int] = set()
        self.deadly_once: set[int] = set()
        self.unreadable_once: set[int] = set()
        self.refused: set[int] = set()
        self.sleepless = False
        """It fails when it is to fall asleep or to wake."""
        self.hanging: FakeEngine | None = None
        """It lives and answers nobody."""
        self.drained = asyncio.Event()
        """A publication waits for it, as an engine does for its running requests."""
        self.drained.set()


@pytest.fixture
def new_plan() -> Callable[[], Plan]:
    """``new_plan()``: for one more engine and its later lives."""
    return Plan


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def backoff() -> Backoff:
    """Of every supervisor that ``make_supervisor`` makes."""
    return QUICK


@pytest.fixture
def make_supervisor(tmp_path: Path) -> Callable[..., EngineSupervisor]:
    """``make_supervisor(plan, **settings)``: of policy ``math``, unless ``policies`` says others."""

    def make(
        plan: Plan,
        policies: tuple[str, ...] = ("math",),
        backoff: Backoff = QUICK,
        heartbeat: Heartbeat | None = None,
        startup_timeout_s: float = 5,
        **settings: Any,
    ) -> EngineSupervisor:
        engine = EngineConfig(startup_timeout_s=startup_timeout_s)
        of_engine = EngineSettings(tmp_path, policies, tmp_path, tmp_path, engine, **settings)
        return EngineSupervisor(of_engine, backoff=backoff, heartbeat=heartbeat, make=lambda _: FakeEngine(plan))  # pyright: ignore[reportArgumentType]

    return make


@pytest.fixture
def publication(tmp_path):
    def make(version: int) -> Publication:
        path = tmp_path / f"v{version}.safetensors"
        path.write_bytes(b"weights")
        probe = Probe(((1, 2),), ((-1.0,),))
        return Publication("math", version, str(path), "0" * 32, 1, "float32", probe, Tolerance(1e-3, 1e-3))

    return make
