"""After a restart, calls are answered by the version that was served last, however long the trainer recovers."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_trainer.config import Config
from lightning_trainer.daemon.publication.resuming import resume
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.shared_memory import WeightFolder
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import PolicyVersion, StepReport, TrainingBatch, VersionState
from lightning_trainer.versions.archive import VersionArchive


class Engine:
    def __init__(self, refuses: str | None = None) -> None:
        self.refuses = refuses
        self.resumed: list[Publication] = []

    def resume(self, publication: Publication, left_out: Any) -> None:
        if self.refuses is not None:
            left_out(self.refuses)
        else:
            self.resumed.append(publication)


class Run:
    """The folder of a policy whose daemon was stopped."""

    def __init__(self, folder: Path, store: SqliteStore) -> None:
        self.folder, self.store = folder, store
        self.archive = VersionArchive(folder / "versions", model_dir=folder)
        self.said: list[str] = []

    async def served(self, *versions: int, kept: bool = True) -> None:
        for version in versions:
            if version > 0:
                batch = TrainingBatch("p", version, ())
                await self.store.assign(
                    batch, policy="p", step=version, attempt_ids=[], ledger=(), state=StepState.ASSIGNED, metrics={}
                )
                await self.store.finish_step("p", StepReport(version, {}, {}, 1, 1, 1, {}), StepState.TRAINED)
            await self.store.put_version(PolicyVersion("p", version, version, VersionState.LIVE, 0))
            if kept:
                self.keep(version)

    def keep(self, version: int) -> None:
        file = self.folder / "published"
        file.write_text(f"weights {version}")
        probe, shape = Probe(((1, 2),), ((-0.5,),)), AdapterShape(4, 8, ("q_proj",))
        self.archive.add(
            Publication("p", version, str(file), "ab" * 16, 2, "float32", probe, Tolerance(1e-3, 1e-3), shape)
        )

    async def resume(self, refuses: str | None = None) -> list[str]:
        """Start again, and return what the files hold that the engine is to serve."""
        engine: Any = Engine(refuses)
        weights = self.folder / "weights"
        weights.mkdir(exist_ok=True)
        await resume(
            "p",
            store=self.store,
            archive=self.archive,
            weights=WeightFolder(weights),
            engine=engine,
            say=self.said.append,
        )
        assert all(Path(one.path).parent == weights for one in engine.resumed)
        return [Path(one.path).read_text() for one in engine.resumed]


@pytest.fixture
async def run(tmp_path: Path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        yield Run(tmp_path, store)


async def test_a_run_that_has_served_nothing_begins_with_the_model(run: Run):
    assert await run.resume() == []
    await run.served(0)
    assert await run.resume() == []
    assert run.said == []


async def test_the_live_version_is_served_from_its_kept_weights(run: Run):
    await run.served(0, 1, 2)
    assert await run.resume() == ["weights 2"]
    assert run.said == []


async def test_what_was_gone_back_to_while_the_daemon_was_stopped_is_served(run: Run):
    await run.served(0, 1, 2)
    await run.store.put_rollback("p", 1, at_ns=0)
    assert await run.resume() == ["weights 1"]
    await run.store.put_rollback("p", 0, at_ns=0)
    assert await run.resume() == []


async def test_where_that_is_not_kept_the_live_one_is_served_until_it_is_made_again(run: Run):
    await run.served(0, 1, kept=False)
    await run.served(2)
    await run.store.put_rollback("p", 1, at_ns=0)
    assert await run.resume() == ["weights 2"]


async def test_who_is_served_the_model_itself_is_told_why(run: Run):
    await run.served(0, 1, 2, kept=False)
    assert await run.resume() == []
    run.keep(2)
    assert await run.resume(refuses="the probe disagrees") == []
    (run.archive.folder(2) / "publication.json").write_text("{")
    assert await run.resume() == []
    not_kept, refused, damaged = run.said
    instead = "version 0, the model itself, answers until training has recovered and publishes"
    assert not_kept == f"p@v2 was served last, and its weights are not kept: {instead}"
    assert refused == (
        f"p@v2 was served last, and what is kept of it cannot be served (the probe disagrees): {instead}"
    )
    assert damaged.startswith("p@v2 was served last, and what is kept of it cannot be served (version 2 is not stored")


async def test_engines_start_when_they_know_what_to_serve(tmp_path: Path):
    told: list[str] = []

    def tells(what: str) -> Any:
        async def tell() -> None:
            await asyncio.sleep(0)
            told.append(what)

        return tell

    engine = SimpleNamespace(start=tells("engine"), stop=tells("stop"))
    policy: Any = SimpleNamespace(
        engine=engine, resume=tells("resume"), start=tells("trainer"), stop=tells("stop"), policy=None
    )
    daemon = Daemon(Config())
    daemon.policies = [policy, policy]
    async with AsyncExitStack() as stack:
        assert await daemon._start_policies(stack, asyncio.Event())
        assert told == ["resume", "resume", "engine", "trainer", "trainer"]
