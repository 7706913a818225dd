"""Room for weights is asked for as it will be used: an adapter's where adapters are published."""

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
            return set(_engines(config, stack, deal(config, ()), folders, folders, EngineProcess)[0])

    return compose


async def test_adapters_ask_for_less_room_than_their_model(compose, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage(0, 0, WHOLE))
    assert await compose(lora={"rank": 16}) == {"one", "other"}
    with pytest.raises(PublicationError, match=f"two versions of the weights need {4 * WHOLE // 2**20} MiB"):
        await compose()
