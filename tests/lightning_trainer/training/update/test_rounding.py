"""What a clip makes of rounding alone: engine and trainer in the precision that is the default here, weights at rest.

That is bfloat16 where the processor has instructions for it. Elsewhere it is float32, and there is next to no rounding.

pytest -m slow tests/lightning_trainer/training/update/test_rounding.py      # some minutes: SmolLM2-135M
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.hardware import fast_dtype
from lightning_trainer.config.policies.updates import OptimizerConfig
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.training.settings import StageSettings, TrainerSettings, one_thread
from lightning_trainer.types import Sample, Segment, TrainingBatch

pytestmark = [pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

_GROUPS, _MEMBERS, _TOKENS = 8, 3, 24
_DTYPE = fast_dtype()
_AT_REST = 1e-30
"""A learning rate that moves no weight: every update of the step is one with the weights that sampled."""

_ALGORITHMS = {
    "gspo": AlgorithmConfig(preset="gspo"),
    "dapo": AlgorithmConfig(preset="dapo"),
    "gspo against the engine": AlgorithmConfig(preset="gspo", old_logprobs="behaviour"),
}


@pytest.fixture(scope="module")
def model_dir():
    return resolve_model("embedded:smollm2-135m-instruct", model_cache())


@pytest.fixture(scope="module")
def batch(model_dir, start_engine, tmp_path_factory) -> TrainingBatch:
    engine = start_engine(
        tmp_path_factory.mktemp("engine"), model_dir=model_dir, dtype=_DTYPE, max_model_len=512, kv_cache_gib=0.5
    )

    async def ask():
        async with engine.client() as client:
            client.timeout = 600.0  # of a busy machine
            prompts = [f"Question {n}: what is {3 * n} times {n + 4}? Think aloud.\n" for n in range(_GROUPS)]
            body = {"model": "tiny", "max_tokens": _TOKENS, "temperature": 1.0, "logprobs": 0, "n": _MEMBERS}
            calls = (
                client.post("/v1/completions", json={**body, "prompt": prompt, "return_token_ids": True, "seed": 1})
                for prompt in prompts
            )
            return [response.raise_for_status().json()["choices"] for response in await asyncio.gather(*calls)]

    try:
        answers = engine.wait(ask())
    finally:
        engine.close()
    return TrainingBatch("p", 1, tuple(_samples(answers)))


def _samples(answers) -> Iterator[Sample]:
    source = random.Random(0)
    for group, choices in enumerate(answers):
        for member, choice in enumerate(choices):
            prompt, ids, name = choice["prompt_token_ids"], choice["token_ids"], f"g{group}a{member}"
            start, end = len(prompt), len(prompt) + len(ids)
            yield Sample(
                sample_id=name,
                policy="p",
                agent="a",
                group_id=f"g{group}",
                attempt_id=name,
                token_ids=(*prompt, *ids),
                loss_mask=(0,) * start + (1,) * len(ids),
                behavior_logprobs=(0.0,) * start + tuple(choice["logprobs"]["token_logprobs"]),
                segments=(Segment(start, end, name, 0, source.random(), name),),
            )


@pytest.fixture(scope="module")
def metrics(model_dir, batch) -> dict[str, dict[str, float]]:
    """By algorithm, of the same batch and the same weights: each is a stage of one trainer."""
    from lightning_trainer.training.trainer import Trainer

    at_rest = OptimizerConfig(lr=_AT_REST)
    stages = tuple(
        StageSettings(step, algorithm.advantage, algorithm, value_credit=None, optimizer=at_rest)
        for step, algorithm in enumerate(_ALGORITHMS.values(), start=1)
    )
    first = stages[0]
    training = one_thread().model_copy(update={"dtype": _DTYPE})
    settings = TrainerSettings(
        "p", model_dir, first.advantage, first.algorithm, optimizer=at_rest, training=training, stages=stages
    )
    trainer = Trainer(settings)
    found = {name: dict(trainer.step(replace(batch, step=n)).metrics) for n, name in enumerate(_ALGORITHMS, start=1)}
    for name, row in found.items():
        print(f"\n{name}: clipped {row['actor/pg_clipfrac']:.2%}, mismatch {row['mismatch/abs_mean']:.4f} nats a token")
    return found


@pytest.mark.parametrize("preset", ["gspo", "dapo"])
def test_a_preset_clips_next_to_nothing_before_its_weights_move(preset, metrics):
    row = metrics[preset]
    assert row["optimizer/updates"] == _GROUPS / 2
    if _DTYPE == "bfloat16":
        assert row["mismatch/abs_mean"] > 1e-3, "engine and trainer round alike: nothing is shown"
    assert row["actor/pg_clipfrac"] < 0.01


@pytest.mark.skipif(_DTYPE != "bfloat16", reason="this processor computes in float32")
def test_against_the_engine_rounding_alone_fills_the_range_of_gspo(metrics):
    """Why the preset takes its ratio against the trainer."""
    assert metrics["gspo against the engine"]["actor/pg_clipfrac"] > 0.05
