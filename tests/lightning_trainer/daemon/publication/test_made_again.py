"""No step is taken on weights that other settings have made of recorded steps, nor with a batch made for them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.trained_with import made_for, trained_with
from lightning_trainer.daemon.loop.weights import Weights
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.publication.version_keeper import VersionKeeper
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import SettingsChangedError, TrainingError
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance
from lightning_trainer.serving.shared_memory import WeightFolder, file_checksum
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.store.worklist.drops import drop
from lightning_trainer.types import StepReport, TrainingBatch, VersionState
from lightning_trainer.versions.archive import VersionArchive


class Trainer:
    """Its weights are the steps that they are made of, each with its learning rate."""

    def __init__(self, policy: PolicyConfig) -> None:
        self._policy = policy
        self.weights: tuple[str, ...] = ()

    async def step(self, batch: TrainingBatch) -> StepReport:
        self.weights = (*self.weights, f"{batch.step}: {self._policy.optimizer.lr}")
        return StepReport(batch.step, {}, {}, 1, 1, 1, {})

    async def restart(self) -> None:
        self.weights = ()

    async def load(self, directory: Path) -> None:
        self.weights = (directory.name,)

    async def publish(self, path: Path, version: int) -> Publication:
        path.write_text("\n".join(self.weights))
        probe, shape = Probe(((1, 2),), ((-0.5,),)), AdapterShape(4, 8, ("q_proj",))
        checksum = file_checksum(path)
        return Publication("p", version, str(path), checksum, 2, "float32", probe, Tolerance(1e-3, 1e-3), shape)


class Engine:
    def __init__(self) -> None:
        self.live: dict[str, Publication] = {}

    async def publish(self, publication: Publication) -> PublicationReport:
        self.live["p"] = publication
        return PublicationReport(True, publication.version, max_abs_diff=1e-5)


class Life:
    """One life of the daemon on a store: what it holds is gone with it, and no checkpoint is written."""

    def __init__(self, folder: Path, store: SqliteStore, **settings: Any) -> None:
        self.policy = PolicyConfig(name="p", agents=("a",), model="random:tiny", **settings)
        self.store, self.trainer, self.engine, self.progress = store, Trainer(self.policy), Engine(), Progress()
        self.keeper = VersionKeeper(self.policy, store=store, archive=VersionArchive(folder / "v", model_dir=folder))
        (weights := WeightFolder(folder / "weights")).folder.mkdir(exist_ok=True)
        trainer: Any = self.trainer
        engine: Any = self.engine
        stored = asyncio.Event()
        self.weights = Weights(
            LoopContext(
                policy=self.policy,
                store=store,
                progress=self.progress,
                metrics=MetricsRecorder("p", store, folder=folder),
                rollbacks=RollbackRequests(wake=stored),
                stored=stored,
            ),
            trainer=trainer,
            publisher=Publisher(
                "p",
                store=store,
                trainer=trainer,
                engine=engine,
                weights=weights,
                keeper=self.keeper,
            ),
            checkpoints=CheckpointFolder(folder / "checkpoints", keep=2),
        )

    async def train(self, *, steps: int, interrupted: int) -> None:
        """Train some steps and begin another one, in which the daemon is stopped."""
        await self.weights.recover(restart=False)
        for step in range(1, steps + 1):
            await self.assign(step)
            await self.weights.train(await self.store.batch("p", step), {})
        await self.assign(interrupted)

    async def assign(self, step: int) -> None:
        batch = TrainingBatch("p", step, (), made_for=made_for(self.policy, step))
        await self.store.assign(batch, policy="p", step=step, attempt_ids=[], ledger=[])
        self.weights.step = step

    async def state(self, step: int) -> StepState:
        return (await self.store.step_states("p"))[step]


@pytest.fixture
async def store(tmp_path: Path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        yield store


async def test_a_step_that_was_interrupted_is_not_taken_on_what_other_settings_made(tmp_path: Path, store: SqliteStore):
    await Life(tmp_path, store).train(steps=3, interrupted=4)

    again = Life(tmp_path, store, optimizer={"lr": 1e-3})
    sentence = r"p@v3 cannot be made again: step 1 was trained with optimizer.lr = 1e-05, and now it is 0.001"
    with pytest.raises(SettingsChangedError, match=sentence):
        await again.weights.recover(restart=False)

    assert again.engine.live == {}
    assert await again.state(4) is StepState.ASSIGNED
    assert await store.version("p", 4) is None
    assert not list((tmp_path / "weights").glob("again-*"))
    with pytest.raises(TrainingError):
        await again.weights.save()

    set_back = Life(tmp_path, store)
    await set_back.weights.recover(restart=False)
    assert set_back.trainer.weights == ("1: 1e-05", "2: 1e-05", "3: 1e-05", "4: 1e-05")
    assert set_back.engine.live["p"].version == 4


async def test_settings_that_change_no_weight_let_the_interrupted_step_be_taken(tmp_path: Path, store: SqliteStore):
    await Life(tmp_path, store).train(steps=3, interrupted=4)
    again = Life(tmp_path, store, algorithm={"clip_ratio_c": 4.0})
    published = await again.weights.recover(restart=False)
    assert (published.version, published.state) == (4, VersionState.LIVE)
    record = await store.step("p", 4)
    assert record.report is not None
    assert record.report.settings == trained_with(again.policy, 4)


async def test_a_step_that_was_never_offered_is_not_repeated_on_what_other_settings_made(tmp_path, store: SqliteStore):
    life = Life(tmp_path, store)
    await life.train(steps=2, interrupted=3)
    await store.finish_step(
        "p", StepReport(3, {}, {}, 1, 1, 1, {}, settings=trained_with(life.policy, 3)), StepState.TRAINED
    )
    with pytest.raises(SettingsChangedError, match="p@v2 cannot be made again"):
        await Life(tmp_path, store, optimizer={"lr": 1e-3}).weights.recover(restart=False)


async def test_a_stage_that_is_over_stays_in_the_configuration(tmp_path: Path, store: SqliteStore):
    """Else the next stage's reference would become the policy as it is now, and after a restart another one."""
    first, second = {"algorithm": "sft", "steps": 2}, {"algorithm": {"preset": "grpo", "kl_loss_coef": 0.1}}
    life = Life(tmp_path, store, stage=[first, second])
    await life.train(steps=3, interrupted=4)
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    sentence = "step 3 was trained in the stage that began with step 3, and now its stage begins with step 1: put "
    for stages in ([second], []):
        with pytest.raises(SettingsChangedError, match=sentence):
            await Life(tmp_path, store, stage=stages).weights.recover(restart=False)
    with pytest.raises(SettingsChangedError, match="and now its stage begins with step 2"):
        await Life(tmp_path, store, stage=[{**first, "steps": 1}, second]).weights.recover(restart=False)

    longer = Life(tmp_path, store, stage=[first, {**second, "steps": 2}, {"algorithm": "grpo"}])
    assert (await longer.weights.recover(restart=False)).version == 4


@pytest.mark.parametrize(
    ("now", "name"),
    [
        ({"algorithm": "sft"}, "algorithm.objective = rl, and now it is sft"),
        ({"credit": {"scheme": "gigpo"}}, "algorithm.advantage = grpo, and now it is credit"),
        ({"credit": {"scheme": "gae_turns"}}, "algorithm.advantage = grpo, and now it is credit"),
    ],
)
async def test_a_batch_is_not_trained_by_an_algorithm_that_it_was_not_made_for(tmp_path, store, now: dict, name: str):
    await Life(tmp_path, store).train(steps=0, interrupted=1)
    again = Life(tmp_path, store, **now)
    with pytest.raises(SettingsChangedError, match=f"step 1 .*{name}.*`lightning-trainer drop p@1`"):
        await again.weights.recover(restart=False)
    assert again.trainer.weights == ()

    await store.write(lambda connection: drop(connection, "p@1", reason="of another algorithm"))
    published = await again.weights.recover(restart=False)
    assert (published.version, published.state) == (0, VersionState.LIVE)


async def test_a_batch_is_trained_with_what_only_its_update_depends_on(tmp_path: Path, store: SqliteStore):
    await Life(tmp_path, store).train(steps=0, interrupted=1)
    again = Life(tmp_path, store, optimizer={"lr": 1e-3}, algorithm={"clip_ratio_low": 0.1, "ppo_epochs": 2})
    await again.weights.recover(restart=False)
    assert again.trainer.weights == ("1: 0.001",)


async def test_what_another_store_has_made_is_not_there_under_the_names_of_what_is_made(tmp_path):
    async with SqliteStore(tmp_path / "one.sqlite") as store:
        life = Life(tmp_path, store)
        await life.train(steps=2, interrupted=3)
        await life.keeper.settled()
    async with SqliteStore(tmp_path / "other.sqlite") as store:
        other = Life(tmp_path, store)
        await other.weights.recover(restart=False)
        await other.keeper.settled()
        assert other.keeper.archive.versions() == [0]
        assert (tmp_path / "v~1" / "v00000002").is_dir()
        assert str(tmp_path / "v~1") in other.progress.problems[0]
