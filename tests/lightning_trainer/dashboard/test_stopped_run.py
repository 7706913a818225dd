"""What the pages over a stopped run say of it is what its daemon said."""

from collections.abc import AsyncIterator

import httpx
import pytest

from lightning_trainer.cli.daemon.ui import dashboard_app
from lightning_trainer.config.file import load_config
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import StepReport, TrainingBatch


@pytest.fixture
async def store(tmp_path, example_run) -> AsyncIterator[SqliteStore]:
    (tmp_path / "lightning.toml").write_text(example_run.config_text())
    async with SqliteStore(load_config(tmp_path / "lightning.toml").daemon.state_dir / "lightning.sqlite") as opened:
        yield opened


@pytest.fixture
def page(tmp_path):
    async def page(path: str) -> str:
        transport = httpx.ASGITransport(dashboard_app(load_config(tmp_path / "lightning.toml"), None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
            return (await client.get(path)).text

    return page


async def test_a_warning_compares_with_the_start_of_a_run_of_many_steps(store, page):
    """Entropy fell to a fortieth, longer ago than the overview's charts reach."""
    for step in range(1, 71):
        batch = TrainingBatch("support", step, ())
        entropy = {"entropy/sampled": 2.0 if step <= 5 else 0.05}
        await store.assign(batch, policy="support", step=step, attempt_ids=[], ledger=[], metrics=entropy)
        await store.finish_step("support", StepReport(step, {}, {}, 1, 1, 1, {}), StepState.TRAINED)
    assert "entropy collapse: 0.05 nats a token, 2 at the start" in await page("/")
