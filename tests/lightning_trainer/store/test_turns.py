"""Whose turn it is to train: one daemon's at a time, and the store refuses what an earlier one still writes."""

import asyncio
import signal
import sys

import pytest

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError, TurnLostError
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.types import PolicyVersion, Sample, Segment, StepReport, TrainingBatch, VersionState

_SHORT = StoreConfig(turn_s=2)


async def _until_taken(store: PostgresStore, holder: str) -> None:
    async with asyncio.timeout(30):
        while await store.take_turn("p", holder) is not None:
            await asyncio.sleep(0.1)


async def _assign(store: PostgresStore, step: int) -> None:
    sample = Sample("s", "p", "x", "g", "a", (1, 2), (0, 1), (0.0, -1.0), (Segment(1, 2, "c", 0, 1.0, "a"),))
    await store.assign(TrainingBatch("p", step, (sample,)), policy="p", step=step, attempt_ids=[], ledger=[])


@pytest.mark.long
async def test_an_earlier_holder_can_neither_commit_nor_publish(postgres_url: str) -> None:
    async with PostgresStore(postgres_url, _SHORT) as one, PostgresStore(postgres_url, _SHORT) as other:
        assert await one.take_turn("p", "one") is None
        assert await other.take_turn("p", "other") == "one"
        await _assign(one, 1)
        with pytest.raises(TurnLostError, match="is trained by the daemon one"):
            await _assign(other, 2)
        await _until_taken(other, "other")  # the first has said nothing for two seconds
        version = PolicyVersion("p", 1, 1, VersionState.LIVE, 1)
        report = StepReport(1, {}, {}, 1, 1, 1, {})
        for write in (
            lambda: _assign(one, 2),
            lambda: one.finish_step("p", report),
            lambda: one.put_version(version),
            lambda: one.put_rollback("p", 0, at_ns=1),
        ):
            with pytest.raises(TurnLostError, match="is trained by the daemon other now"):
                await write()
        assert not await one.renew_turn("p")
        await other.finish_step("p", report)
        await other.put_version(version)
        assert [step.step for step in await one.steps("p")] == [1]
        assert await one.append([]) == 0


@pytest.mark.long
async def test_a_turn_that_is_renewed_stays_and_one_that_is_given_up_is_free_at_once(postgres_url: str) -> None:
    async with PostgresStore(postgres_url, _SHORT) as one, PostgresStore(postgres_url, _SHORT) as other:
        assert await one.take_turn("p", "one") is None
        assert await one.take_turn("q", "one") is None
        for _ in range(6):
            await asyncio.sleep(0.5)
            assert await one.renew_turn("p")
        assert await other.take_turn("p", "other") == "one"
        assert await other.take_turn("q", "other") is None, "nobody renewed that one"
        await one.give_up_turn("p")
        assert await other.take_turn("p", "other") is None


async def test_daemons_that_ask_together_get_one_turn(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        found = await asyncio.gather(*(store.take_turn("p", str(n)) for n, store in enumerate(stores)))
        assert found.count(None) == 1
        assert len(set(found) - {None}) == 1
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_command_without_a_daemon_writes_while_nobody_trains(postgres_url: str) -> None:
    async with PostgresStore(postgres_url, _SHORT) as store, PostgresStore(postgres_url, _SHORT) as command:
        await _assign(command, 1)
        assert await store.take_turn("p", "one") is None
        with pytest.raises(StoreError, match="ask that one, or stop it"):
            await _assign(command, 2)
        await store.give_up_turn("p")
        await _assign(command, 2)


_TRAINS = """
import asyncio, contextlib, sys

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError, TurnLostError
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.types import PolicyVersion, VersionState


async def renew(store):
    with contextlib.suppress(StoreError):
        while await store.renew_turn("p"):
            await asyncio.sleep(0.3)


async def main():
    async with PostgresStore(sys.argv[1], StoreConfig(turn_s=2)) as store:
        assert await store.take_turn("p", "one") is None
        renewing = asyncio.create_task(renew(store))
        for step in range(1, 10_000):
            try:
                await store.assign(None, policy="p", step=step, attempt_ids=[], ledger=[], state="skipped")
                await store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, step))
            except TurnLostError as error:
                print(f"refused: {error}", flush=True)
                break
            except StoreError:
                continue  # it was stopped in the middle of a transaction, which the server has ended
            print(step, flush=True)
        await renewing


asyncio.run(main())
"""


@pytest.mark.process
async def test_a_daemon_that_was_stopped_and_wakes_up_commits_nothing(postgres_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _TRAINS, postgres_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60), PostgresStore(postgres_url, _SHORT) as other:
            for _ in range(3):
                assert int(await process.stdout.readline())
            process.send_signal(signal.SIGSTOP)
            await _until_taken(other, "other")
            last = max(step.step for step in await other.steps("p"))
            await other.assign(None, policy="p", step=last + 1, attempt_ids=[], ledger=[], state="skipped")
            await other.put_version(PolicyVersion("p", last + 1, last + 1, VersionState.LIVE, 1))
            process.send_signal(signal.SIGCONT)
            said = (await process.stdout.read()).decode().splitlines()
            assert await process.wait() == 0
            # What it had committed before it was stopped it may still say; then it is refused.
            assert all(int(line) <= last for line in said[:-1])
            assert "is trained by the daemon other now" in said[-1]
            assert [step.step for step in await other.steps("p")] == list(range(1, last + 2))
            live = await other.live_version("p")
            assert live is not None
            assert live.version == last + 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_runs_name_is_one_callers_until_it_is_let_go_or_its_daemon_is_silent(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as one, PostgresStore(postgres_url) as other:
        assert await one.hold_run("r", "caller", 60)
        assert not await other.hold_run("r", "another", 60)
        assert await other.hold_run("r", "caller", 60), "the same caller, at a daemon that is there"
        assert await one.held_runs() == ["r"]
        await one.release_run("r", "another")
        assert not await one.hold_run("r", "another", 60)
        await one.release_run("r", "caller")
        assert await other.held_runs() == []
        assert await one.hold_run("r", "caller", 1)
        async with asyncio.timeout(30):
            while not await other.hold_run("r", "another", 60):
                await asyncio.sleep(0.1)
        assert not await one.hold_run("r", "caller", 60)
