"""Engines on the nodes of a cluster: files arrive whole and go again, and what dies comes back elsewhere."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_trainer.config import Config, EngineConfig
from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.serving import node_files
from lightning_trainer.serving.host.settings import HostSettings
from lightning_trainer.serving.node_files import NodeFolder
from lightning_trainer.serving.settings import EngineSettings, engine_settings, replica_settings

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).with_name("nodes_script.py")
ON_A_CLUSTER = {"placement": "cluster", "dtype": "float32"}
IN_ONE = {"ray": {"address": "10.0.0.4:6379"}, "training": {"device": "cpu"}}


def test_a_cluster_needs_an_address():
    with pytest.raises(ValueError, match=r'engine.placement = "cluster" needs a cluster: set address in \[ray\]'):
        Config.model_validate({"engine": ON_A_CLUSTER})
    assert Config.model_validate({"engine": ON_A_CLUSTER, **IN_ONE}).engine.placement == "cluster"


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"placement": "cluster"}, "machines that are not seen from here; say dtype ="),
        ({"placement": "cluster", "dtype": "auto"}, "machines that are not seen from here; say dtype ="),
        ({**ON_A_CLUSTER, "gpus": [0]}, "gpus names GPUs of this machine, and .* Ray assigns those of its nodes"),
        ({"on_new_weights": "continue"}, "vLLM 0.31 does not say which of two versions sampled a token"),
        ({"on_new_weights": "abort", "finish_timeout_s": 5}, 'finish_timeout_s = 5 is for on_new_weights = "finish"'),
    ],
)
def test_what_cannot_be_is_refused(engine, said):
    with pytest.raises(ValueError, match=said):
        EngineConfig.model_validate(engine)


@pytest.mark.parametrize(
    ("engine", "drain_timeout_s"),
    [({}, None), ({"finish_timeout_s": 90}, 90), ({"on_new_weights": "abort"}, 0)],
)
def test_running_generations_end_first_unless_the_configuration_says_otherwise(engine, drain_timeout_s, tmp_path):
    policy = {"name": "p", "agents": ["a"], "model": "random:tiny"}
    config = Config.model_validate({"engine": engine, "policy": [policy]})
    assert engine_settings(config, config.policy, tmp_path, tmp_path, tmp_path).drain_timeout_s == drain_timeout_s


def test_nobody_here_knows_the_cores_of_a_node(tmp_path):
    here = EngineSettings(tmp_path, ("p",), tmp_path, tmp_path, EngineConfig.model_validate(ON_A_CLUSTER))
    assert [one.threads for one in replica_settings(here, 2)] == [None, None]


def test_replicas_have_one_vllm_and_a_node_may_get_a_newer_one():
    from lightning_trainer.config.sections import RayConfig
    from lightning_trainer.serving.on_ray.engine import EngineCluster

    cluster = EngineCluster(RayConfig(address="10.0.0.4:6379"), None)  # pyright: ignore[reportArgumentType]
    first, second, third = object(), object(), object()
    cluster.enter(first, ("p",), "0.31.0", "node-1")
    cluster.enter(second, ("q",), "0.32.0", "node-2")
    with pytest.raises(EngineError, match=r"node-2 has vLLM 0\.32\.0 and node-1, where another replica is, 0\.31\.0"):
        cluster.enter(third, ("p",), "0.32.0", "node-2")
    cluster.leave(third)
    cluster.leave(first)
    cluster.enter(third, ("p",), "0.32.0", "node-1")


def test_a_node_needs_room_for_adapters_where_adapters_are_published(tmp_path):
    from lightning_trainer.serving.on_ray.engine import _weight_bytes

    text = b'{"model.up_proj.weight": {"dtype": "BF16", "shape": [4096, 1024], "data_offsets": [0, 0]}}'
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    engine = EngineConfig.model_validate(ON_A_CLUSTER)
    whole = EngineSettings(tmp_path, ("p",), tmp_path, tmp_path, engine)
    assert _weight_bytes(whole) == 4 * 4096 * 1024 + 100
    adapters = EngineSettings(tmp_path, ("p", "q"), tmp_path, tmp_path, engine, lora_rank=8)
    assert _weight_bytes(adapters) == 2 * (4 * 8 * (4096 + 1024) + 2 * 100)


def test_no_engine_listens_without_a_token():
    settings = HostSettings("/m", ("p",), "", "/w", "/s", EngineConfig(), host="10.0.0.5")
    with pytest.raises(EngineError, match=r"is to listen on 10\.0\.0\.5 without a token; give it one"):
        HostSettings.from_line(settings.to_line())


class Node:
    """The node's side, without Ray in between."""

    def __init__(self, folder: Path) -> None:
        self.weights = NodeFolder(folder)
        self.written: list[int] = []

    async def ask(self, method: str, *arguments):
        if method == "weight_path":
            return str(self.weights.root / arguments[0])
        assert method == "in_memory"
        if arguments[0] == "write":
            self.written.append(arguments[2])
        return getattr(self.weights, arguments[0])(*arguments[1:])

    @property
    def files(self) -> list[str]:
        return sorted(path.name.split("-")[0] for path in self.weights.root.rglob("*") if path.is_file())


async def test_a_file_is_brought_once_and_the_one_before_goes(tmp_path, monkeypatch, publication):
    from lightning_trainer.serving.on_ray.engine import ObjectStoreChunks

    monkeypatch.setattr(node_files, "_CHUNK_BYTES", 3)
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node")
    transport = ObjectStoreChunks(node.ask)
    for version in (1, 2):
        brought = await transport.bring(publication(version))
        assert Path(brought.path).read_bytes() == b"weights"
        assert await transport.bring(publication(version)) == brought
        await transport.settle(publication(version), served=True)
        assert node.files == [f"v{version}"]
    assert sorted(node.written) == [0, 0, 3, 3, 6, 6]
    await transport.bring(publication(3))
    await transport.settle(publication(3), served=False)
    assert node.files == ["v2"], "what was refused goes, what is served stays"
    gone = publication(4)
    Path(gone.path).unlink()
    with pytest.raises(PublicationError, match="math@v4 cannot be sent to the engine"):
        await transport.bring(gone)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replicas_on_two_nodes_take_versions_and_one_that_loses_its_node_comes_back_on_another(tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**clean, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "as on this machine"
