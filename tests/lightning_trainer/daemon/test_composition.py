"""What is known of a policy before anything of it is started."""

from contextlib import AsyncExitStack

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config
from lightning_trainer.daemon.composition import compose
from lightning_trainer.daemon.policy_runtime import DaemonContext
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore


async def test_the_steps_that_are_done_are_known_before_the_engine_starts(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    (tmp_path / "tokenizer.json").touch()
    policy = {"name": "p", "agents": ["p"], "model": str(tmp_path)}
    config = Config.model_validate({"policy": [policy], "daemon": {"state_dir": str(tmp_path / "state")}})
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(SqliteStore(tmp_path / "store.sqlite"))
        for step in (1, 2, 3):
            await store.assign(None, policy="p", step=step, attempt_ids=(), ledger=(), state=StepState.SKIPPED)
        await store.write(lambda connection: connection.execute("UPDATE steps SET state = 'assigned' WHERE step = 3"))
        context = DaemonContext(
            config=config,
            store=store,
            sink=NotifyingStore(store),
            census=LiveCensus(store),
            url="http://127.0.0.1:1",
            guard_url="http://127.0.0.1:1",
            token=None,
            make_upstream=lambda engine: None,  # pyright: ignore[reportArgumentType]
        )
        (runtime,) = await compose(context, stack)
        assert runtime.progress.steps_done == 2
