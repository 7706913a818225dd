"""Engines on one GPU start, fall asleep and wake one after the other; those on others do not wait for them."""

import asyncio
from pathlib import Path

import pytest

from lightning_trainer.config import EngineConfig
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.gpu_turns import GpuTurns
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.supervisor import Backoff, EngineState, EngineSupervisor

QUICK = Backoff(first_s=0.001, longest_s=0.002)


class Machine:
    """What its engines do, each named by its policy, and which of them have been let through their start."""

    def __init__(self, monkeypatch) -> None:
        self.said: list[str] = []
        self.goes: dict[str, asyncio.Event] = {name: asyncio.Event() for name in "abc"}
        self.turns = GpuTurns()

        def name(engine: EngineProcess) -> str:
            return engine.settings.policies[0]

        async def start(engine: EngineProcess) -> None:
            self.said.append(f"start {name(engine)}")

        async def ready(engine: EngineProcess, timeout_s: float) -> None:
            await self.goes[name(engine)].wait()
            self.said.append(f"ready {name(engine)}")

        async def sleep(engine: EngineProcess, level: int) -> None:
            self.said.append(f"sleep {name(engine)}")

        async def wake(engine: EngineProcess) -> None:
            self.said.append(f"wake {name(engine)}")

        for method in (start, ready, sleep, wake):
            monkeypatch.setattr(EngineProcess, method.__name__, method)

    def engine(self, policy: str, *gpus: str, startup_timeout_s: float = 600.0) -> EngineSupervisor:
        here, config = Path("/x"), EngineConfig(startup_timeout_s=startup_timeout_s)
        settings = EngineSettings(here, (policy,), here, here, config, gpus=gpus or None)
        return EngineSupervisor(settings, make=self.turns.engine, backoff=QUICK)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


async def all_wait() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_engines_of_one_gpu_start_one_after_the_other(machine):
    a, b, c = machine.engine("a", "0", "1"), machine.engine("b", "1", "0"), machine.engine("c", "2")
    starting = asyncio.gather(a.start(), b.start(), c.start())
    await all_wait()
    assert machine.said == ["start a", "start c"]
    machine.goes["a"].set()
    await all_wait()
    assert machine.said == ["start a", "start c", "ready a", "start b"]
    machine.goes["b"].set()
    machine.goes["c"].set()
    await starting
    for engine in (a, b, c):
        await engine.stop()


async def test_none_falls_asleep_or_wakes_while_another_one_starts(machine):
    a, b = machine.engine("a", "0"), machine.engine("b", "0")
    machine.goes["a"].set()
    await a.start()
    starting = asyncio.create_task(b.start())
    await all_wait()
    sleeping = asyncio.create_task(a.sleep(1))
    await all_wait()
    assert machine.said[2:] == ["start b"]
    machine.goes["b"].set()
    await asyncio.gather(starting, sleeping)
    assert machine.said[2:] == ["start b", "ready b", "sleep a"]
    await b.stop()
    machine.goes["b"].clear()
    starting = asyncio.create_task(b.start())
    await all_wait()
    waking = asyncio.create_task(a.wake())
    await all_wait()
    assert machine.said[-1] == "start b"
    await b.stop()  # which ends its turn
    await waking
    assert machine.said[-1] == "wake a"
    starting.cancel()
    await a.stop()


async def test_one_that_is_called_off_before_its_turn_starts_when_the_trainer_is_done(machine):
    a, b = machine.engine("a", "0"), machine.engine("b", "0", startup_timeout_s=0.01)
    starting = asyncio.gather(a.start(), b.start())
    await all_wait()
    await b.sleep(1)
    machine.goes["a"].set()
    machine.goes["b"].set()
    await all_wait()
    assert machine.said == ["start a", "ready a"]
    await b.wake()
    await starting
    assert machine.said == ["start a", "ready a", "start b", "ready b"]
    assert b.state is EngineState.READY
    await asyncio.gather(a.stop(), b.stop())
