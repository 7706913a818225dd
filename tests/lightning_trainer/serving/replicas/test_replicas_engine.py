"""Two real engines serve one policy: a version switches both, and one that is killed comes back with it."""

import asyncio
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from safetensors.torch import load_file, save_file

from lightning_trainer.config import EngineConfig
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.settings import EngineSettings, replica_settings
from lightning_trainer.serving.shared_memory import WeightFiles, file_checksum
from lightning_trainer.serving.supervisor import EngineState, EngineSupervisor

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROBE_IDS = ((5, 6, 7, 8), (9, 10, 11))
CALL = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": True}


@pytest.fixture
def weights(tmp_path):
    with WeightFiles(tmp_path / "state", version_bytes=2**26) as weights:
        yield weights


def changed(model_dir: Path, weights: WeightFiles, version: int, probe: Probe) -> Publication:
    """The model with one matrix scaled by the version."""
    tensors = load_file(model_dir / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name] * (1.0 + version)
    path = weights.path(version)
    save_file(tensors, path)
    return Publication(
        "tiny", version, str(path), file_checksum(path), len(tensors), "float32", probe, Tolerance(1e-3, 2e-4)
    )


def trainers_scores(model_dir: Path, file: str) -> Probe:
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    model.load_state_dict(load_file(file), strict=False)
    rows = []
    for ids in PROBE_IDS:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        rows.append(tuple(logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()))
    return Probe(PROBE_IDS, tuple(rows))


async def test_two_engines_serve_switch_together_and_one_that_is_killed_comes_back(tiny_model, tmp_path, weights):
    settings = EngineSettings(
        tiny_model,
        ("tiny",),
        weights.folder,
        tmp_path,
        EngineConfig(dtype="float32", max_model_len=256, max_num_seqs=16, kv_cache_gib=0.25),
        threads=1,
        drain_timeout_s=20,
    )
    replicas = EngineReplicas([EngineSupervisor(one) for one in replica_settings(settings, 2)])
    upstream = Upstream(replicas)
    used: list[EngineSupervisor] = []
    begin = replicas.begin
    replicas.begin = lambda avoid=(), conversation=None: used.append(begin(avoid, conversation)) or used[-1]  # pyright: ignore[reportAttributeAccessIssue]

    async def call() -> int:
        answer = await upstream.complete("/v1/completions", orjson.dumps(CALL))
        assert answer.status == 200, answer.body
        return int(answer.headers["x-lightning-policy-version"])

    async def calls(number: int = 8) -> set[int]:
        used.clear()
        return set(await asyncio.gather(*(call() for _ in range(number))))

    try:
        await replicas.start()
        assert await calls() == {0}
        assert Counter(used) == dict.fromkeys(replicas.replicas, 4)

        unproven = Probe(PROBE_IDS, tuple(tuple(-0.5 for _ in ids[1:]) for ids in PROBE_IDS))
        first = changed(tiny_model, weights, 1, unproven)
        first = replace(first, probe=trainers_scores(tiny_model, first.path))
        during, report = await asyncio.gather(calls(24), replicas.publish(first))
        assert report.accepted, report.reason
        assert during <= {0, 1}
        assert await calls() == {1}
        assert len(set(used)) == 2
        assert [one.versions for one in replicas.status.replicas] == [{"tiny": 1}] * 2

        refused = await replicas.publish(changed(tiny_model, weights, 2, unproven))
        assert not refused.accepted
        assert "of 2: " in (refused.reason or "")
        assert await calls() == {1}

        # What happens where the other one refuses.
        second = changed(tiny_model, weights, 2, unproven)
        took = await replicas.replicas[0].publish(replace(second, probe=trainers_scores(tiny_model, second.path)))
        assert took.accepted, took.reason
        await replicas.replicas[0].restore("tiny", replicas.live["tiny"])
        assert replicas.replicas[0].status.restarts == 0, "the version before is loaded and proven at once"
        assert await calls() == {1}

        killed = replicas.replicas[0]
        pid = killed.status.pid
        assert pid is not None
        calling = asyncio.create_task(calls())
        while len(used) < 8:
            await asyncio.sleep(0)
        assert killed in used
        os.kill(pid, signal.SIGKILL)
        assert await calling == {1}, "the other one answers what it dropped"
        assert used.count(replicas.replicas[1]) == 8
        assert replicas.state is EngineState.READY
        while killed.status.restarts == 0:
            await asyncio.sleep(0.05)
        await killed.ready(120)
        assert killed.status.pid != pid
        assert killed.status.versions == {"tiny": 1}
        assert await calls() == {1}
        assert set(used) == set(replicas.replicas)
        for number in (1, 2):
            assert (tmp_path / f"replica-{number}" / "engine.log").is_file()
    finally:
        await upstream.close()
        await replicas.stop()
