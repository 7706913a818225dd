"""A trainer on two nodes of a Ray cluster gives the numbers of one process, and needs no path of the daemon's disk."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_trainer.config import Config, hardware
from lightning_trainer.config.sections import RayConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.on_ray.environ import set_ray_environment

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).with_name("cluster_script.py")


@pytest.fixture(autouse=True)
def _ray():
    set_ray_environment()


@pytest.mark.parametrize("address", ["10.0.0.4", "ray://10.0.0.4:10001", "auto", "h:1:2"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="is not the address of a Ray cluster; write HOST:PORT"):
        RayConfig(address=address)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"backend": "inprocess", "device": "cpu"}, "needs training.backend"),
        ({}, 'say device = "cuda" or "cpu" in'),
    ],
)
def test_a_cluster_asks_for_what_is_not_seen_from_here(training, said):
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"ray": {"address": "10.0.0.4:6379"}, "training": training})


def test_an_address_where_nobody_listens_is_one_sentence():
    from lightning_trainer.training.on_ray.session import RaySession

    session = RaySession(cluster=RayConfig(address="127.0.0.1:9"))
    with pytest.raises(TrainingError, match=r"\[ray\] address = '127.0.0.1:9' cannot be reached"):
        session.start()


def test_a_trainer_on_an_engines_gpu_is_refused(monkeypatch):
    from lightning_trainer.training.on_ray.cluster import Node, require_apart

    here = Node("n1", "first", 1, "3.11", "0.1.0", "0.9.1")
    there = replace(here, node_id="n2", host="second", gpus=("0", "1"))
    require_apart([there, replace(here, gpus=("0",))], here, {"1"})
    with pytest.raises(
        TrainingError, match=r"GPU 1 of the daemon's machine first, .* --num-gpus=0, .* \[engine\] gpus"
    ):
        require_apart([there, replace(here, gpus=("1",))], here, {"1"})
    monkeypatch.setattr(hardware, "gpu_uuids", lambda: {"0": "GPU-aaaa0", "1": "GPU-bbbb1"})
    require_apart([replace(here, gpus=("0",))], here, {"GPU-bbbb1"})
    with pytest.raises(TrainingError, match="GPU 1 of the daemon's machine"):
        require_apart([replace(here, gpus=("1",))], here, {"GPU-bbbb1"})


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"CPU": 1.0}, "has 1 CPUs and 0 GPUs, and the trainer asks for 2 and 2"),
        ({"CPU": 8.0, "GPU": 1.0}, "has 8 CPUs and 1 GPUs, and the trainer asks for 2 and 2"),
    ],
)
def test_a_cluster_with_too_little_is_one_sentence(monkeypatch, there, said):
    from lightning_trainer.training.on_ray import cluster

    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: there)
    with pytest.raises(TrainingError, match=said):
        cluster.reserve(2, 1.0, RayConfig(address="h:1"))


@pytest.mark.parametrize(("changed", "what"), [("python", "Python"), ("ours", "lightning-trainer"), ("verl", "verl")])
def test_a_node_that_is_not_like_ours_is_named(changed, what):
    from lightning_trainer.training.on_ray.cluster import Node, require_alike

    here = Node("a", "head", 1, "3.11", "0.1.0", "0.9.1")
    require_alike([here, replace(here, node_id="b", process_id=2)], here)
    with pytest.raises(TrainingError, match=f"the node other has {what} 9 and the daemon .*; install .* there"):
        require_alike([here, replace(here, host="other", **{changed: "9"})], here)


def test_what_ray_says_of_joining_becomes_one_sentence():
    from lightning_trainer.training.on_ray.cluster import joining_failed

    mismatch = RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.50\n  Python: 3.12")
    assert "has other versions than this daemon: Version mismatch" in str(joining_failed("h:1", mismatch))
    assert "must be a node of it: ray start --address=h:1" in str(joining_failed("h:1", ConnectionError("no raylet")))


async def test_files_arrive_as_they_are_whatever_their_size(tmp_path, monkeypatch):
    from lightning_trainer.serving import node_files

    monkeypatch.setattr(node_files, "_CHUNK_BYTES", 7)
    node = node_files.NodeFolder()

    async def ask(method, *arguments):
        return getattr(node, method)(*arguments)

    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    contents = {"a": b"", "b": b"1234567", "below/c": bytes(range(100))}
    for name, data in contents.items():
        (source / name).write_bytes(data)
    await node_files.ship(source, "model", ask)
    await node_files.ship(source / "b", "one", ask)
    (tmp_path / "back").mkdir()
    await node_files.fetch("model", tmp_path / "back", ask)
    await node_files.fetch("one", tmp_path / "one", ask)
    assert {name: (tmp_path / "back" / name).read_bytes() for name in contents} == contents
    assert (tmp_path / "one").read_bytes() == b"1234567"
    with pytest.raises(TrainingError, match="is not in the folder of this process"):
        node.read("../../etc/passwd", 0)
    with pytest.raises(TrainingError, match="cannot be sent to another node"):
        await node_files.ship(tmp_path / "absent", "x", ask)
    node.remove()
    assert not node.root.exists()


@pytest.mark.slow
@pytest.mark.verl
def test_two_processes_on_two_nodes_train_publish_save_and_go_on_as_one_would(tmp_path, settings, samples_of_shape):
    import pickle

    from lightning_trainer.types import TrainingBatch

    shapes = {1: "forks inside responses", 2: "shared prefixes"}
    batches = [TrainingBatch("tiny", step, tuple(samples_of_shape(step, shapes[step]))) for step in shapes]
    (tmp_path / "in").write_bytes(pickle.dumps((settings(), batches)))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "GLOO_"))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**clean, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "as one would"
