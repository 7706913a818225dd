"""Room for weights is asked for as it will be used: an adapter's where adapters are published; and a GPU's memory is
divided among the engines that it may have."""

import json
import struct
from collections import namedtuple
from contextlib import AsyncExitStack

import pytest

from lightning_trainer.config import Config
from lightning_trainer.daemon.composition import _engines
from lightning_trainer.daemon.hardware.dealing import deal
from lightning_trainer.errors import PublicationError
from lightning_trainer.serving import shared_memory
from lightning_trainer.serving.engine import EngineProcess

WHOLE = 2 * 4096 * 4096


@pytest.fixture
def model_dir(tmp_path):
    """A model in bfloat16 of one linear layer, whose header alone is there."""
    header = {"model.layers.0.mlp.up_proj.weight": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    return tmp_path


@pytest.fixture
def compose(model_dir):
    """Puts the engines of two policies together, each with this of its own."""

    async def compose(**own) -> set[str]:
        policies = [{"name": name, "agents": [name], "model": str(model_dir), **own} for name in ("one", "other")]
        settings = {"daemon": {"state_dir": str(model_dir / "state")}, "engine": {"dtype": "bfloat16"}}
        config = Config.model_validate({"policy": policies, **settings})
        folders = {policy.name: model_dir for policy in config.policy}
        async with AsyncExitStack() as stack:
            return set(_engines(config, stack, deal(config, ()), folders, folders, EngineProcess))

    return compose


async def test_adapters_ask_for_less_room_than_their_model(compose, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage(0, 0, WHOLE))
    assert await compose(lora={"rank": 16}) == {"one", "other"}
    with pytest.raises(PublicationError, match=f"two versions of the weights need {4 * WHOLE // 2**20} MiB"):
        await compose()


@pytest.mark.parametrize(
    ("gpus", "own", "first", "second"),
    [
        (["0"], {"guard": {"command": ["true"]}}, (("0",), 0.4, True), (("0",), 0.4, True)),
        (["0", "1", "2"], {}, (("1",), 0.9, False), (("2",), 0.9, False)),
    ],
)
async def test_the_second_engine_has_the_gpu_and_the_memory_that_were_dealt(model_dir, gpus, own, first, second):
    policy = {"name": "p", "agents": ["p"], "model": str(model_dir), **own}
    settings = {"daemon": {"state_dir": str(model_dir / "state")}, "training": {"device": "cuda"}}
    config = Config.model_validate({"policy": [policy], **settings})
    folders = {"p": model_dir}
    async with AsyncExitStack() as stack:
        engine = _engines(config, stack, deal(config, gpus), folders, folders, EngineProcess)["p"]
    dealt = [
        (one.gpus, one.gpu_memory_utilization, one.sleeps) for one in (engine.replicas.first.settings, engine.second)
    ]
    assert (dealt, engine.no_second) == ([first, second], None)
