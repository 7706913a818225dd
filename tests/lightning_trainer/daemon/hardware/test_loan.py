"""The GPU goes to the trainer for a whole step, and back for the new version."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from lightning_trainer.daemon.hardware.loan import GpuLoan
from lightning_trainer.training.process import TrainerProcess
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import StepReport


@dataclass
class Engine:
    slow_s: float = 0.0
    asleep: bool = False
    said: list[str] = field(default_factory=list)
    seen: list[bool] = field(default_factory=list)
    """Whether it slept, at each call of the trainer."""

    async def sleep(self, level: int) -> None:
        await asyncio.sleep(self.slow_s)
        if not self.asleep:
            self.said.append(f"sleep {level}")
        self.asleep = True

    async def wake(self) -> None:
        if self.asleep:
            self.said.append("wake")
        self.asleep = False


class Process(TrainerProcess):
    def __init__(self, engine: Engine) -> None:
        super().__init__([TrainerSettings("p", Path("model"))])
        self.engine = engine
        self._open.add("p")

    async def _start(self) -> None: ...

    async def _end(self) -> None: ...

    async def _asked(self, what, policy, method="", *arguments):
        self.engine.seen.append(self.engine.asleep)
        if method == "fail":
            raise RuntimeError(method)
        return StepReport(1, {}, {}, 0, 0, 0, {"train": 1.0})


def made(linger_s: float, slow_s: float = 0.0) -> tuple[Engine, TrainerClient, GpuLoan]:
    engine = Engine(slow_s)
    trainer = TrainerClient("p", Process(engine))
    trainer.gpu = loan = GpuLoan([engine], 1, linger_s=linger_s)  # pyright: ignore[reportArgumentType]
    return engine, trainer, loan


async def test_a_step_and_what_follows_it_at_once_are_one_sleep():
    engine, trainer, loan = made(linger_s=0.2, slow_s=0.05)
    report = await trainer.step(None)  # pyright: ignore[reportArgumentType]
    await trainer.publish(None, 1)  # pyright: ignore[reportArgumentType]
    assert engine.said == ["sleep 1"]
    assert engine.seen == [True, True]
    assert report.seconds["train"] == 1.0
    assert report.seconds["sleep"] >= 0.05
    await asyncio.sleep(0.4)
    assert engine.said == ["sleep 1", "wake"]
    await loan.close()


async def test_a_call_that_fails_gives_the_gpu_back():
    engine, trainer, loan = made(linger_s=0.01)
    try:
        await trainer._in_turn("fail")
    except RuntimeError:
        await asyncio.sleep(0.1)
    assert engine.said == ["sleep 1", "wake"]
    await loan.close()


async def test_engines_wake_when_the_last_of_several_trainers_is_done():
    engine, trainer, loan = made(linger_s=0.01)
    async with loan:
        await trainer.score([[1, 2]])
        await asyncio.sleep(0.1)
        assert engine.asleep
    await asyncio.sleep(0.1)
    assert not engine.asleep
    assert engine.said == ["sleep 1", "wake"]
    await loan.close()


async def test_what_a_publication_woke_sleeps_again_for_the_next_call():
    engine, trainer, loan = made(linger_s=5)
    await trainer.score([[1, 2]])
    await engine.wake()  # as a publication does
    await trainer.score([[1, 2]])
    assert engine.said == ["sleep 1", "wake", "sleep 1"]
    assert engine.seen == [True, True]
    await loan.close()
    assert not engine.asleep


async def until_all_wait() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_version_goes_live_when_no_trainer_has_the_gpu_and_the_next_one_waits_for_it():
    engine, trainer, loan = made(linger_s=5)
    proven = asyncio.Event()

    async def publish() -> None:
        async with loan.for_engines():
            await engine.wake()
            await proven.wait()

    async with loan:
        publishing = asyncio.create_task(publish())
        await until_all_wait()
        await trainer.score([[1, 2]])  # one that comes while the publication waits
        assert engine.said == ["sleep 1"]
    await until_all_wait()
    assert engine.said == ["sleep 1", "wake"]
    scoring = asyncio.create_task(trainer.score([[1, 2]]))
    await until_all_wait()
    assert engine.said == ["sleep 1", "wake"], "the version is not proven yet"
    proven.set()
    await asyncio.gather(publishing, scoring)
    assert engine.said == ["sleep 1", "wake", "sleep 1"]
    assert engine.seen == [True, True]
    await loan.close()


async def test_versions_of_two_engines_go_live_at_once_and_one_that_fails_returns_the_gpu():
    engine, trainer, loan = made(linger_s=5)
    async with loan.for_engines(), loan.for_engines():
        scoring = asyncio.create_task(trainer.score([[1, 2]]))
        await until_all_wait()
        try:
            async with asyncio.timeout(0), loan.for_engines():
                raise AssertionError("a trainer came first")
        except TimeoutError:
            assert engine.seen == []
    await scoring
    try:
        async with loan.for_engines():
            raise RuntimeError
    except RuntimeError:
        await trainer.score([[1, 2]])
    assert engine.seen == [True, True]
    await loan.close()


async def test_without_a_loan_a_report_says_nothing_of_sleep():
    engine = Engine()
    assert "sleep" not in (await TrainerClient("p", Process(engine)).step(None)).seconds  # pyright: ignore[reportArgumentType]
