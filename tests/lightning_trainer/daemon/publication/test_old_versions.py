"""The second engine says when it was given up, until another one is started for the version; where there is no room for
it, that is said at once, and while a trainer has its GPU none is started."""

import asyncio
from typing import Any

import pytest

from lightning_trainer.daemon.publication.old_versions import OldVersionBusyError, OldVersionEngine
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.versions.archive import VersionArchive


class Broken:
    """An engine whose process ends by itself as it starts."""

    pid, node, killed = 7, None, False

    async def start(self) -> None:
        raise EngineError("it has no weights")

    async def stop(self) -> None: ...


class Upstream:
    async def close(self) -> None: ...


def made(tmp_path, no_room: str | None = None) -> OldVersionEngine:
    """One that keeps version 3."""
    (tmp_path / "model").mkdir()
    archive = VersionArchive(tmp_path / "versions", model_dir=tmp_path / "model")
    file = tmp_path / "weights"
    file.write_text("weights")
    probe = Probe(((1, 2),), ((-0.5,),))
    archive.add(Publication("p", 3, str(file), "ab" * 16, 2, "float32", probe, Tolerance(1e-3, 1e-4)))
    broken: Any = Broken
    upstream: Any = Upstream
    return OldVersionEngine(
        archive,
        EngineSettings(tmp_path / "model", ("p",), tmp_path, tmp_path / "logs"),
        make_engine=lambda settings: broken(),
        idle_timeout_s=60,
        make_upstream=lambda engine: upstream(),
        no_room=no_room,
    )


async def test_an_engine_that_was_given_up_is_said_of_its_version_alone(tmp_path) -> None:
    old = made(tmp_path)
    assert old.failure(3) is None
    lease = await old.lease(3)
    assert lease is not None
    async with asyncio.timeout(10):
        while old.failure(3) is None:
            await asyncio.sleep(0.01)
    assert old.failure(3) == "it has no weights"
    assert old.failure(4) is None
    lease.release()
    await old.stop()
    assert old.failure(3) is None


async def test_without_memory_for_it_none_is_started_and_the_caller_hears_why(tmp_path) -> None:
    old = made(tmp_path, no_room="no GPU has room for it; add a GPU")
    with pytest.raises(EngineError, match="no GPU has room for it"):
        await old.lease(3)
    assert old.in_use == ()
    assert await old.lease(4) is None


async def test_while_a_trainer_has_its_gpu_none_is_started(tmp_path) -> None:
    old = made(tmp_path)
    await old.sleep(1)
    with pytest.raises(OldVersionBusyError, match="when the trainer has done with its GPU"):
        await old.lease(3)
    assert old.in_use == ()
    await old.wake()
    lease = await old.lease(3)
    assert lease is not None
    lease.release()
    await old.stop()
