"""A head without processors and two nodes on this machine; two replicas on them, whose host is ``host_program.py``."""

import asyncio
import os
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from lightning_trainer.training.on_ray.environ import set_ray_environment

set_ray_environment(cluster=True)

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from lightning_trainer.config import EngineConfig  # noqa: E402
from lightning_trainer.config.sections import RayConfig  # noqa: E402
from lightning_trainer.errors import EngineError  # noqa: E402
from lightning_trainer.serving.engine_client import Engine  # noqa: E402
from lightning_trainer.serving.on_ray.engine import EngineCluster  # noqa: E402
from lightning_trainer.serving.publication import Probe, Publication, Tolerance  # noqa: E402
from lightning_trainer.serving.replicas import EngineReplicas  # noqa: E402
from lightning_trainer.serving.settings import EngineSettings, replica_settings  # noqa: E402
from lightning_trainer.serving.shared_memory import WeightFiles, file_checksum  # noqa: E402
from lightning_trainer.serving.supervisor import EngineSupervisor  # noqa: E402
from lightning_trainer.training.remote import cluster_session  # noqa: E402

HOST = Path(__file__).with_name("host_program.py")
PIECES = 7
"""Chunks of a file, and a bit."""


async def main(folder: Path, cluster: Cluster, nodes: list) -> None:
    from lightning_trainer.serving import node_files

    node_files._CHUNK_BYTES = 2**16
    config = RayConfig(address=str(cluster.address))
    session = cluster_session(config)
    placed = EngineCluster(config, session)
    settings = of_engine(folder)
    before = set(leftovers())
    with WeightFiles(folder / "state", version_bytes=2**20) as weights:
        settings = replace(settings, weights_dir=weights.folder)
        each = replica_settings(settings, 2)
        replicas = EngineReplicas([EngineSupervisor(one, make=placed.engine) for one in each])
        await replicas.start()
        assert all(one.status.node and one.status.pid for one in replicas.replicas)
        for version in (1, 2, 3):
            report = await replicas.publish(publication(weights.path(version), version))
            assert report.accepted
            assert str(settings.model_dir) not in str(report.reason), "the model is read from the daemon's disk"
            # Of the versions on the node: the new one, and the one before it until this one is settled.
            assert str(report.reason).count(".safetensors") == min(version, 2), report.reason
        assert str(report.reason).split()[0].startswith(tempfile.gettempdir())

        dead, actor = replicas.replicas[0], replicas.replicas[0]._engine
        assert isinstance(actor, Engine)
        victim = next(node for node in nodes if node.node_id == actor._place.node_id)  # pyright: ignore[reportAttributeAccessIssue]
        cluster.remove_node(victim, allow_graceful=False)
        await until(lambda: dead.status.restarts == 1)
        await dead.ready(120)
        assert [one.status.versions for one in replicas.replicas] == [{"math": 3}] * 2
        assert "node" in str(dead.status.last_error), dead.status.last_error
        assert (await replicas.publish(publication(weights.path(4), 4))).accepted

        other = placed.engine(replace(settings, engine=of_engine(folder, seed="0.32.0").engine))
        await refused(other, "has vLLM 0.32.0 and .*, where another replica is, 0.31.0; install the same on both")
        without = settings.engine.model_copy(update={"python": "/nowhere/python"})
        await refused(placed.engine(replace(settings, engine=without)), "cannot be run: No such file")
        await refused(EngineCluster(config, session, gpus=1).engine(settings), "an engine asks for 1 and 1; add nodes")
        await replicas.stop()
    # A node that was killed leaves its folders to the next process that looks.
    await until(lambda: len(set(leftovers()) - before) <= 2)
    print("as on this machine")


def of_engine(folder: Path, **vllm: str) -> EngineSettings:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(os.urandom(PIECES * 2**16 + 5))
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {HOST}\n")
    python.chmod(0o755)
    engine = EngineConfig(dtype="float32", placement="cluster", replicas=2, python=str(python), vllm=vllm)
    return EngineSettings(model, ("math",), folder, folder / "logs", engine)


def publication(path: Path, version: int) -> Publication:
    path.write_bytes(os.urandom(PIECES * 2**16 + version))
    probe = Probe(((1, 2),), ((-1.0,),))
    checksum = file_checksum(path)
    return Publication("math", version, str(path), checksum, 1, "float32", probe, Tolerance(1e-3, 1e-3))


async def refused(engine: Engine, said: str) -> None:
    try:
        await engine.start()
        await engine.ready(120)
        reason = "it started"
    except EngineError as error:
        reason = str(error)
    await engine.stop()
    assert re.search(said, reason), reason


async def until(condition) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def leftovers() -> list[Path]:
    places = (Path(tempfile.gettempdir()).glob("lightning-node-*"), Path("/dev/shm").glob("lightning-trainer-*"))
    return [path for place in places for path in place]


def started(tries: int = 8) -> tuple[Cluster, list]:
    """Ray gives a node 30 s to start, which a busy machine does not always keep."""
    cluster = Cluster()
    try:
        nodes = [cluster.add_node(num_cpus=processors) for processors in (0, 4, 4)]
        cluster.wait_for_nodes()
        return cluster, nodes
    except Exception:
        cluster.shutdown()
        if tries == 1:
            raise
        return started(tries - 1)


if __name__ == "__main__":
    cluster, nodes = started()
    try:
        asyncio.run(main(Path(sys.argv[1]), cluster, nodes))
    finally:
        ray.shutdown()
        cluster.shutdown()
