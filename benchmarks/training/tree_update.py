"""One update by one engine, measured: ``tree.py`` starts this as a process of its own."""

import json
import random
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from lightning_trainer.config.policies.updates import OptimizerConfig
from lightning_trainer.training.settings import TrainerSettings, one_thread
from lightning_trainer.types import Sample, Segment

AT_REST = OptimizerConfig(lr=1e-30)
"""Moves no weight."""
_NOISE_NATS = 0.1
"""So much noise clips some tokens in a hundred."""


class Sizes(NamedTuple):
    """Numbers of tokens, attempts, and turns."""

    common: int = 240
    """Tokens of the prompt that all tasks share."""
    task: int = 25
    sampled: int = 35
    observed: int = 20
    members: int = 8
    turns: int = 10


_SIZES = Sizes()
_BUDGET = {"tree": 8192, "stock": 4096}
"""Tokens of a micro-batch: with 8192, sequences of ten turns take the stock engine more than 24 GiB."""


def main(engine: Literal["tree", "stock"], workload: str, model_dir: Path, out: Path, groups: int) -> None:
    import numpy as np
    from safetensors.torch import save_file

    from lightning_trainer.training.tree.trie import build_trie
    from lightning_trainer.training.update.worker import UpdateWorker

    settings = TrainerSettings(
        policy="benchmark",
        model_dir=model_dir,
        optimizer=AT_REST,
        training=one_thread().model_copy(update={"attention": engine, "max_tokens_per_micro_batch": _BUDGET[engine]}),
    )
    worker = UpdateWorker(settings)
    # Trajectories are ten times as long: fewer groups have about as many unique tokens.
    samples = (
        grouped(groups, worker.vocabulary_size) if workload == "groups" else turns(groups // 2, worker.vocabulary_size)
    )
    samples = as_sampled(samples, worker, out.parent / "logprobs.json")
    advantages = {
        sample.sample_id: [bit * (-1.0) ** index for bit in sample.loss_mask] for index, sample in enumerate(samples)
    }
    gradients = {}
    module: Any = worker.module

    def keep_gradients(*_: Any) -> None:
        for name, parameter in module.named_parameters():
            gradients[name] = parameter.grad.full_tensor().clone()

    worker.engine.optimizer.register_step_pre_hook(keep_gradients)
    began = time.process_time()
    update = worker.train(samples, advantages)
    cpu_s = time.process_time() - began
    out.mkdir(exist_ok=True)
    save_file(gradients, out / "gradients.safetensors")
    run = {
        "samples": len(samples),
        "computed": update.tokens_computed,
        # The last token of a sample predicts nothing that is trained.
        "unique": len(build_trie([np.array(sample.token_ids[:-1]) for sample in samples])),
        "cpu_s": cpu_s,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": update.metrics["loss"],
        "grad_norm": length(gradients.values()),
        "clipped": update.metrics["actor/pg_clipfrac"],
    }
    (out / "run.json").write_text(json.dumps(run))


def as_sampled(samples: list[Sample], worker: Any, kept: Path) -> list[Sample]:
    """Return the samples with behavior log-probabilities of the measured model, and noise as of older weights.

    Args:
        kept: where the first engine writes the log-probabilities, so that both are given the same ones.
    """
    if not kept.exists():
        source = random.Random(1)
        noisy = [[value + source.gauss(0.0, _NOISE_NATS) for value in own] for own in worker.logprobs(samples)]
        kept.write_text(json.dumps(noisy))
    return [
        replace(
            sample, behavior_logprobs=tuple(min(v, -1e-3) * bit for v, bit in zip(own, sample.loss_mask, strict=True))
        )
        for sample, own in zip(samples, json.loads(kept.read_text()), strict=True)
    ]


def length(gradients: Iterable[Any]) -> float:
    return sum(gradient.square().sum().item() for gradient in gradients) ** 0.5


def grouped(groups: int, vocabulary: int) -> list[Sample]:
    """Return attempts of one call each."""
    source, samples = random.Random(0), []
    common = _tokens(source, _SIZES.common, vocabulary)
    for group in range(groups):
        prompt = common + _tokens(source, _SIZES.task, vocabulary)
        samples += [
            _sample(group, f"{group}-{member}", prompt, _tokens(source, _SIZES.sampled, vocabulary))
            for member in range(_SIZES.members)
        ]
    return samples


def turns(groups: int, vocabulary: int, sizes: Sizes = _SIZES) -> list[Sample]:
    """Return attempts of several calls each, every call a sample."""
    source, samples = random.Random(0), []
    common = _tokens(source, sizes.common, vocabulary)
    for group in range(groups):
        task = common + _tokens(source, sizes.task, vocabulary)
        for member in range(sizes.members):
            prompt = task
            for turn in range(sizes.turns):
                response = _tokens(source, sizes.sampled, vocabulary)
                samples.append(_sample(group, f"{group}-{member}-{turn}", prompt, response))
                prompt = prompt + response + _tokens(source, sizes.observed, vocabulary)
    return samples


def _tokens(source: random.Random, count: int, vocabulary: int) -> list[int]:
    return [source.randrange(vocabulary) for _ in range(count)]


def _sample(group: int, name: str, prompt: list[int], response: list[int]) -> Sample:
    length = len(prompt) + len(response)
    return Sample(
        sample_id=name,
        policy="benchmark",
        agent="agent",
        group_id=str(group),
        attempt_id=name,
        token_ids=(*prompt, *response),
        loss_mask=(0,) * len(prompt) + (1,) * len(response),
        behavior_logprobs=(0.0,) * length,
        segments=(Segment(len(prompt), length, name, 0, 1.0, name),),
    )


if __name__ == "__main__":
    chosen, shape, model, folder, count = sys.argv[1:]
    main(cast(Literal["tree", "stock"], chosen), shape, Path(model), Path(folder), int(count))
