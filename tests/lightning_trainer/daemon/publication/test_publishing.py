"""A version's number stands for one file: what is made again of it takes nothing's place."""

from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.publication import publishing
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.publication.version_keeper import VersionKeeper
from lightning_trainer.errors import SettingsChangedError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance
from lightning_trainer.serving.shared_memory import WeightFolder, file_checksum
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, VersionState
from lightning_trainer.versions.archive import VersionArchive


class Trainer:
    """Its weights are a text."""

    weights = "as they were"

    async def publish(self, path: Path, version: int) -> Publication:
        path.write_text(self.weights)
        probe, shape = Probe(((1, 2),), ((-0.5,),)), AdapterShape(4, 8, ("q_proj",))
        checksum = file_checksum(path)
        return Publication("p", version, str(path), checksum, 2, "float32", probe, Tolerance(1e-3, 1e-3), shape)


class Engine:
    """As a real one does, it refuses other values under the number that it serves."""

    def __init__(self) -> None:
        self.live: dict[str, Publication] = {}

    async def publish(self, publication: Publication) -> PublicationReport:
        live = self.live.get("p")
        if live is not None and live.version == publication.version and live != publication:
            return PublicationReport(False, live.version, "it is being served with other values")
        if live is not None and live.path != publication.path:
            Path(live.path).unlink()
        self.live["p"] = publication
        return PublicationReport(True, publication.version, max_abs_diff=1e-5)


class Run:
    def __init__(self, folder: Path, store: SqliteStore) -> None:
        self.folder, self.store = folder, store
        self.trainer = Trainer()
        self.archive = VersionArchive(folder / "versions", model_dir=folder)
        self.weights = WeightFolder(folder / "weights")
        self.weights.folder.mkdir()
        self.start()

    def start(self) -> None:
        """A new life of the daemon."""
        self.engine = Engine()
        policy = PolicyConfig(name="p", agents=("a",), model="random:tiny")
        trainer: Any = self.trainer
        engine: Any = self.engine
        self.publisher = Publisher(
            "p",
            store=self.store,
            trainer=trainer,
            engine=engine,
            weights=self.weights,
            keeper=VersionKeeper(policy, store=self.store, archive=self.archive),
        )

    async def publish(self, version: int, **settings: Any) -> VersionState:
        outcome = await self.publisher.publish(version=version, step=version, **settings)
        await self.publisher._keeper.settled()
        return outcome.state

    @property
    def served(self) -> str:
        return Path(self.engine.live["p"].path).read_text()

    def kept(self, version: int) -> str:
        return Path(self.archive.publication(version).path).read_text()

    async def checksum(self, version: int) -> str | None:
        recorded = await self.store.version("p", version)
        return recorded and recorded.checksum


@pytest.fixture
async def run(tmp_path: Path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        yield Run(tmp_path, store)


@pytest.mark.parametrize("weights", ["as they were", "but for the last bit"])
async def test_a_served_version_that_is_made_again_stays_as_it_is(run: Run, weights: str):
    assert await run.publish(1) is VersionState.LIVE
    checksum = await run.checksum(1)
    run.start()
    run.engine.live["p"] = run.archive.copy(1, run.weights.path(1))  # as ``resume`` does
    run.trainer.weights = weights

    assert await run.publish(1) is VersionState.LIVE

    assert run.served == run.kept(1) == "as they were"
    assert await run.checksum(1) == checksum
    recorded = await run.store.version("p", 1)
    assert recorded is not None
    assert recorded.probe_max_abs == 1e-5
    assert [path.name for path in run.weights.folder.iterdir()] == ["v1.safetensors"]


async def test_going_back_to_what_is_kept_serves_that_whatever_rounding_makes_of_it_again(run: Run):
    await run.publish(1)
    run.trainer.weights = "a step further"
    await run.publish(2)

    assert await run.publisher.serve_kept(1)
    assert run.served == "as they were"
    run.trainer.weights = "but for the last bit"
    assert await run.publish(1, asked_for=True) is VersionState.LIVE

    assert run.served == run.kept(1) == "as they were"
    run.trainer.weights = "another way"
    assert await run.publish(3) is VersionState.LIVE
    assert run.served == "another way"


@pytest.mark.parametrize("kept", [True, False])
async def test_other_settings_put_no_other_weights_under_a_number(run: Run, kept: bool):
    await run.publish(1)
    run.trainer.weights = "a step further"
    await run.publish(2)
    if kept:
        assert await run.publisher.serve_kept(1)
    before, served = await run.checksum(1), run.served
    assert served == ("as they were" if kept else "a step further")

    run.trainer.weights = "trained with another learning rate"
    with pytest.raises(SettingsChangedError, match=r"p@v1 cannot be made again: step 1 .* optimizer.lr .* set it back"):
        await run.publish(1, changed="step 1 was trained with optimizer.lr = 1e-05, and now it is 1e-06")

    assert run.served == served
    assert run.kept(1) == "as they were"
    assert await run.checksum(1) == before
    assert len(list(run.weights.folder.iterdir())) == 1


async def test_a_version_that_was_never_proven_is_not_replaced_by_what_other_settings_made(run: Run):
    made = await run.trainer.publish(run.weights.path(1), 1)
    candidate = PolicyVersion(
        "p", 1, 1, VersionState.TRAINED, 0, checksum=made.checksum
    )  # the daemon ends in its canary
    await run.store.put_version(candidate)
    run.trainer.weights = "trained with another learning rate"
    for _ in range(2):
        run.start()
        with pytest.raises(SettingsChangedError):
            await run.publish(1, changed="step 1 was trained with optimizer.lr = 1e-05, and now it is 1e-06")
    assert await run.store.version("p", 1) == candidate


async def test_a_setting_that_changes_no_weight_refuses_nothing(run: Run):
    await run.publish(1)
    run.start()
    assert await run.publish(1, changed="step 1 was trained with algorithm.tau_pos = 1, and now it is 2") == "live"


async def test_what_another_daemon_made_live_and_cannot_be_read_now_is_tried_again(run: Run):
    """Before: it was an error of the loop, and the third one in the daemon's life ended its following for a while."""
    await run.publish(1)
    run.start()  # as another daemon that follows
    weights = Path(run.archive.publication(1).path)
    away = weights.rename(weights.with_suffix(".away"))
    for _ in range(4):
        said = await run.publisher.follow()
        assert said is not None
        assert said.startswith("p@v1 is live and not served here, where version 0 goes on: the kept weights of p@v1 ")
    away.rename(weights)
    assert await run.publisher.follow() is None
    assert run.served == "as they were"


async def test_what_another_daemon_made_live_and_does_not_come_is_said(run: Run, monkeypatch):
    await run.publish(1)
    run.archive.remove(1)
    run.start()
    assert await run.publisher.follow() is None  # it may be on its way
    monkeypatch.setattr(publishing, "_COPIED_S", 0.0)
    said = await run.publisher.follow()
    assert said is not None
    assert said.endswith("v00000001; is [store] shared_dir a folder that all daemons see?")
