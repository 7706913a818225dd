"""Steps of one trainer on Ray, measured: ``placement.py`` starts this as a process of its own."""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from lightning_trainer.config.policies.updates import OptimizerConfig
from lightning_trainer.config.sections import RayConfig
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.training.on_ray.environ import set_ray_environment
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import Sample, Segment, TrainingBatch

_STEPS = 5
_GROUPS, _MEMBERS, _PROMPT, _SAMPLED = 4, 8, 64, 32
_TOKENS = 256
"""Ids are drawn from so many first ones of the vocabulary, which the tiny model has as well."""


def main(where: str, model: str, out: Path) -> None:
    set_ray_environment(cluster=where == "cluster")
    folder = resolve_model(model, model_cache())
    if where == "local":
        seconds = asyncio.run(_measure(folder, None))
    else:
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            for processors in (0, 1):
                cluster.add_node(num_cpus=processors)
            cluster.wait_for_nodes()
            seconds = asyncio.run(_measure(folder, RayConfig(address=str(cluster.address))))
        finally:
            cluster.shutdown()
    out.write_text(json.dumps(seconds))


async def _measure(model_dir: Path, cluster: RayConfig | None) -> dict[str, float]:
    from lightning_trainer.training.remote import make_trainers

    settings = TrainerSettings("placed", model_dir, optimizer=OptimizerConfig(lr=1e-6))
    (trainer,) = make_trainers("ray", [settings], cluster=cluster)
    await trainer.start()
    steps, publications = [], []
    with tempfile.TemporaryDirectory(prefix="lightning-placed-") as scratch:
        try:
            for step in range(1, _STEPS + 2):
                steps.append(await _seconds(trainer.step(_batch(step))))
                publications.append(await _seconds(trainer.publish(Path(scratch) / f"v{step}.safetensors", step)))
        finally:
            await trainer.close()
    return {"a step": statistics.median(steps[1:]), "a publication": statistics.median(publications[1:])}


async def _seconds(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _batch(step: int) -> TrainingBatch:
    source = random.Random(step)
    samples = []
    for group in range(_GROUPS):
        prompt = _tokens(source, _PROMPT)
        for member in range(_MEMBERS):
            name = f"{step}-{group}-{member}"
            samples.append(_sample(name, f"{step}-{group}", prompt, _tokens(source, _SAMPLED), credit=member % 2))
    return TrainingBatch("placed", step, tuple(samples))


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(_TOKENS) for _ in range(count)]


def _sample(name: str, group: str, prompt: list[int], sampled: list[int], credit: float) -> Sample:
    return Sample(
        sample_id=name,
        policy="placed",
        agent="agent",
        group_id=group,
        attempt_id=name,
        token_ids=(*prompt, *sampled),
        loss_mask=(*[0] * len(prompt), *[1] * len(sampled)),
        behavior_logprobs=(*[0.0] * len(prompt), *[-5.0] * len(sampled)),
        segments=(Segment(len(prompt), len(prompt) + len(sampled), name, 0, float(credit), name),),
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
