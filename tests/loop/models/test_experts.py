"""A mixture of experts is served, sampled, trained and published, and the trainer takes the experts that sampled.

Slow: an engine and a trainer of their own, since the model is another one.
"""

import asyncio
import base64
import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.models.resolve import resolve_model
from lightning_trainer.types import Sample, Segment

pytestmark = [pytest.mark.slow, pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

AGENT = Path(__file__).parents[1] / "scripts" / "experts_script.py"
STEPS = 3
POLICY = """
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny-moe"
group_size = 2
groups_per_step = 2
max_sample_tokens = 512
samples = "merged"
optimizer.lr = 1e-3
"""


@pytest.mark.parametrize(
    ("attention", "trained"),
    [("tree", ""), ("stock", ""), ("tree", "lora = { rank = 4 }\n")],
    ids=["tree", "stock", "lora"],
)
def test_each_step_replays_what_the_engine_chose_and_publishes_what_the_probe_proves(attention, trained, make_daemon):
    training = f'backend = "inprocess"\nattention = "{attention}"'
    daemon = make_daemon(POLICY + trained, engine="routed_experts = true", training=training)
    daemon.config.write_text(daemon.config.read_text().replace("max_model_len = 256", "max_model_len = 512"))
    with daemon.running("tiny"):
        daemon.script(AGENT, str(STEPS))
        assert daemon.answer("tiny").version == str(STEPS)
    lines = (daemon.folder / "state" / "metrics" / "tiny.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines)}
    assert len(rows) == STEPS, daemon.tail()
    for row in rows.values():
        assert row["experts/replayed"] == 1.0
        assert row["mismatch/abs_mean"] < 1e-5
        assert row["mismatch/abs_max"] < 1e-4
        assert row["probe/max_abs"] < 1e-4
        assert row["grad_norm"] > 0
        assert row["ledger/dropped"] == 0


@pytest.fixture(scope="module")
def decided_model(tmp_path_factory) -> Path:
    """``random:tiny-moe`` with larger weights: experts that differ, and routers whose choice is close now and then."""
    from safetensors.torch import load_file, save_file

    folder = resolve_model("random:tiny-moe", tmp_path_factory.mktemp("models"))
    file = folder / "model.safetensors"
    save_file({name: 5.0 * value if value.dim() > 1 else value for name, value in load_file(file).items()}, file)
    return folder


def test_in_bfloat16_the_experts_that_sampled_bring_the_trainer_nearer(decided_model, start_engine, tmp_path):
    """Ma et al., arXiv 2510.11370, figure 2: what differs most is tokens for which the two choose other experts."""
    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.update.worker import UpdateWorker

    engine = start_engine(tmp_path, model_dir=decided_model, dtype="bfloat16", routed_experts=True)
    try:
        samples = engine.wait(_sampled(engine))
    finally:
        engine.close()
    worker = UpdateWorker(TrainerSettings(policy="tiny", model_dir=decided_model))
    apart = {
        name: sorted(
            abs(ours - theirs)
            for sample, found in zip(given, worker.logprobs(given), strict=True)
            for ours, theirs, bit in zip(found, sample.behavior_logprobs, sample.loss_mask, strict=True)
            if bit
        )
        for name, given in {
            "replayed": samples,
            "own": [replace(s, segments=tuple(replace(g, routed_experts=None) for g in s.segments)) for s in samples],
        }.items()
    }
    mean = {name: sum(found) / len(found) for name, found in apart.items()}
    assert mean["replayed"] < 0.7 * mean["own"]
    assert apart["replayed"][-1] < 0.3 * apart["own"][-1]


async def _sampled(engine) -> list[Sample]:
    """What 48 requests sampled, with the experts of all of their positions."""
    async with engine.client() as client:

        async def one(number: int) -> Sample:
            body = {"model": "tiny", "messages": [{"role": "user", "content": f"say {number}"}], "max_tokens": 100}
            body |= {"return_token_ids": True, "ignore_eos": True, "logprobs": True}
            answer = await client.post("/v1/chat/completions", json=body, headers={"x-lightning-support": "1"})
            document = answer.json()
            (choice,) = document["choices"]
            assert choice["routed_experts"] is None, "vLLM's own field stays empty: it would go out to the caller"
            told = base64.b64decode(document["lightning_support"]["0"]["routed_experts"])
            prompt, response = document["prompt_token_ids"], choice["token_ids"]
            logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
            ids, start = (*prompt, *response), len(prompt)
            experts = RoutedExperts.decode(told)
            segment = Segment(start, len(ids), f"{number}", 0, 1.0, f"{number}", routed_experts=experts)
            return Sample(
                *(f"{number}", "tiny", "tester", "group", f"{number}", ids),
                loss_mask=(0,) * start + (1,) * len(response),
                behavior_logprobs=(0.0,) * start + tuple(logprobs),
                segments=(segment,),
            )

        samples = []
        for first in range(0, 48, 16):
            samples.append(await asyncio.gather(*(one(number) for number in range(first, first + 16))))
        return list(chain.from_iterable(samples))
