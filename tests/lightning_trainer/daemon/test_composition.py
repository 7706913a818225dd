"""What is known of a policy before anything of it is started."""

from contextlib import AsyncExitStack, nullcontext

import pytest

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config
from lightning_trainer.daemon.composition import compose
from lightning_trainer.daemon.hardware.loan import GpuLoan
from lightning_trainer.daemon.policy_runtime import DaemonContext
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.serving.gpu_turns import EngineInTurn
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        yield store


@pytest.fixture
def context(tmp_path, store):
    """Return what makes the context of one policy, whose engine has these settings."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    (tmp_path / "tokenizer.json").touch()
    policy = {"name": "p", "agents": ["p"], "model": str(tmp_path)}

    def make(**engine) -> DaemonContext:
        return DaemonContext(
            config=Config.model_validate(
                {"policy": [policy], "daemon": {"state_dir": str(tmp_path / "state")}, "engine": engine}
            ),
            store=store,
            sink=NotifyingStore(store),
            census=LiveCensus(store),
            url="http://127.0.0.1:1",
            guard_url="http://127.0.0.1:1",
            token=None,
            make_upstream=lambda engine: None,  # pyright: ignore[reportArgumentType]
        )

    return make


async def test_the_steps_that_are_done_are_known_before_the_engine_starts(store, context):
    for step in (1, 2, 3):
        await store.assign(None, policy="p", step=step, attempt_ids=(), ledger=(), state=StepState.SKIPPED)
    await store.write(lambda connection: connection.execute("UPDATE steps SET state = 'assigned' WHERE step = 3"))
    async with AsyncExitStack() as stack:
        (runtime,) = await compose(context(), stack)
        assert runtime.progress.steps_done == 2


async def test_an_engine_that_sleeps_takes_its_gpu_from_no_trainer(context):
    async with AsyncExitStack() as stack:
        (runtime,) = await compose(context(sleep=True), stack)
        assert isinstance(runtime.trainer.gpu, GpuLoan)
        assert runtime.engine.gpu == runtime.trainer.gpu.for_engines
        supervisor = runtime.engine.first
        assert isinstance(supervisor._make(supervisor.settings), EngineInTurn), "engines of one GPU take turns"
    async with AsyncExitStack() as stack:
        (runtime,) = await compose(context(sleep=False), stack)
        assert runtime.engine.gpu is nullcontext
