"""Old adapters are loaded once, stay while they are called, and are loaded again by whoever calls after a restart."""

import asyncio
import json
from pathlib import Path

import pytest

from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS, AdapterShape
from lightning_trainer.serving.host.weights.version_pinning import VERSION_HEADER
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance
from lightning_trainer.serving.supervisor import EngineState, EngineStatus
from lightning_trainer.versions.archive import VersionArchive


class Engine:
    """Stands where the supervisor stands, and remembers what it was told."""

    base_url = "http://engine"

    def __init__(self) -> None:
        self.headers = {"Authorization": "Bearer t"}
        self.pid = 7
        self.told: list[str] = []
        self.refuses = False

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(EngineState.READY, self.pid, {"p": 9}, 0, 1.0, None)

    async def ready(self, timeout_s: float) -> None:
        pass

    async def hold(self, publication: Publication) -> PublicationReport:
        assert Path(publication.path).read_text() == f"weights {publication.version}"
        self.told.append(f"hold {publication.version}")
        return PublicationReport(not self.refuses, 9, "it differs" if self.refuses else None)

    async def drop(self, policy: str, version: int) -> None:
        self.told.append(f"drop {version}")


class Upstream:
    def __init__(self, endpoint) -> None:
        self.endpoint, self.closed = endpoint, False

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def archive(tmp_path) -> VersionArchive:
    archive = VersionArchive(tmp_path / "versions", model_dir=tmp_path / "model")
    for version in (3, 4):
        file = tmp_path / f"v{version}"
        file.write_text(f"weights {version}")
        archive.add(
            Publication(
                policy="p",
                version=version,
                path=str(file),
                checksum="ab" * 16,
                tensor_count=2,
                dtype="float32",
                probe=Probe(((1, 2),), ((-0.5,),)),
                tolerance=Tolerance(1e-3, 1e-4),
                adapter=AdapterShape(4, 8, ("q_proj",)),
            )
        )
    return archive


@pytest.fixture
def old(archive, engine, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    return OldAdapters("p", archive, engine, weights, idle_timeout_s=0.05, make_upstream=Upstream)  # pyright: ignore[reportArgumentType]


async def test_a_call_finds_the_version_that_it_asks_for(old, engine, tmp_path):
    lease = await old.lease(3)
    assert lease.upstream.endpoint.headers == {"Authorization": "Bearer t", VERSION_HEADER: "3"}
    assert lease.upstream.endpoint.base_url == engine.base_url
    assert engine.told == ["hold 3"]
    assert not list((tmp_path / "weights").iterdir()), "the engine has its own copy"
    assert await old.lease(5) is None


async def test_several_calls_and_versions_share_the_engine_and_leave_when_idle(old, engine):
    leases = [await old.lease(version) for version in (3, 3, 4)]
    assert engine.told == ["hold 3", "hold 4"]
    assert leases[0].upstream is leases[1].upstream
    assert old.in_use == (3, 4)
    leases[0].release()
    leases[2].release()
    await asyncio.sleep(0.2)
    assert engine.told == ["hold 3", "hold 4", "drop 4"]
    assert leases[2].upstream.closed
    assert old.in_use == (3,)
    leases[1].release()
    await asyncio.sleep(0.01)
    again = await old.lease(3)  # before it was idle for long enough
    await asyncio.sleep(0.2)
    assert engine.told[-1] == "drop 4"
    again.release()
    await asyncio.sleep(0.2)
    assert engine.told[-1] == "drop 3"
    assert old.in_use == ()


async def test_after_a_restart_of_the_engine_it_is_loaded_again(old, engine):
    await old.lease(3)
    engine.pid = 8
    await old.lease(3)
    assert engine.told == ["hold 3", "hold 3"]


async def test_a_call_that_waited_for_a_restart_finds_its_version_again(old, engine):
    """The gateway waits in ``ready`` before it sends a call, and before it sends one again that the engine dropped."""
    endpoint = (await old.lease(3)).upstream.endpoint
    await endpoint.ready(1.0)
    assert engine.told == ["hold 3"]
    engine.pid = 8
    await asyncio.gather(endpoint.ready(1.0), endpoint.ready(1.0))
    assert engine.told == ["hold 3", "hold 3"]


async def test_what_is_refused_is_an_error_and_not_in_use_and_opens_nothing(old, engine, monkeypatch):
    engine.refuses = True
    monkeypatch.setattr(old, "_make_upstream", lambda endpoint: pytest.fail("a connection that nobody would close"))
    with pytest.raises(EngineError, match="the kept adapter of p@v3 cannot be served: it differs"):
        await old.lease(3)
    assert old.in_use == ()


async def test_stopping_unloads_all(old, engine):
    await old.lease(3)
    (await old.lease(4)).release()
    await old.stop()
    assert sorted(engine.told) == ["drop 3", "drop 4", "hold 3", "hold 4"]
    await asyncio.sleep(0.1)
    assert sorted(engine.told) == ["drop 3", "drop 4", "hold 3", "hold 4"]


def test_a_stored_adapter_is_a_folder_for_peft(archive, tmp_path):
    folder = archive.folder(3)
    assert {file.name for file in folder.iterdir()} == {"adapter_config.json", ADAPTER_WEIGHTS, "publication.json"}
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8)
    assert config["base_model_name_or_path"] == str(tmp_path / "model")
    assert archive.publication(3).adapter == AdapterShape(4, 8, ("q_proj",))
