"""Adapters of one base trained in one process, measured: ``adapters.py`` starts this as a process of its own."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.training.tree_update import grouped
from lightning_trainer.config.policies.updates import LoraConfig, OptimizerConfig
from lightning_trainer.training.in_process import build_trainers
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import Sample, TrainingBatch

_STEPS = 3
"""Steps of each policy; the first one, which makes the optimizer's moments, is not timed."""
_OFFSET = 257
"""Added to the tokens of the second policy's samples, so that they share nothing with the first one's."""


def main(count: int, groups: int, model_dir: Path, out: Path) -> None:
    """Write the peak resident size and the median CPU-seconds of a policy's step.

    Args:
        count: the number of policies.
        groups: the number of groups, of eight attempts each, in each policy's batch.
    """
    lora, optimizer = LoraConfig(rank=16, alpha=32), OptimizerConfig(lr=1e-4)
    settings = [
        TrainerSettings(f"p{number}", model_dir, lora=lora, optimizer=optimizer, base="one") for number in range(count)
    ]
    trainers = build_trainers(settings)
    vocabulary = min(trainers.open(one.policy)._learner.policy.vocabulary_size for one in settings)
    own = _rewarded(grouped(groups, vocabulary))
    seconds = []
    for step in range(1, _STEPS + 1):
        for one in settings:
            batch = TrainingBatch(one.policy, step, own)
            seconds.append(_timed(lambda batch=batch: trainers.call(batch.policy, "step", batch)))
    run = {
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # before the batch of two policies
        "step_s": statistics.median(seconds[count:]),
        "tokens": sum(sum(sample.loss_mask) for sample in own),
    }
    if count == 1:
        both = (*own, *_others(own, vocabulary))
        together = [
            _timed(lambda step=step: trainers.call("p0", "step", TrainingBatch("p0", step, both)))
            for step in range(_STEPS + 1, 2 * _STEPS + 1)
        ]
        run["two_in_one_s"] = statistics.median(together)
    out.write_text(json.dumps(run))


def _rewarded(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return the samples with rewards that differ: otherwise there is nothing to learn."""
    return tuple(
        replace(sample, segments=tuple(replace(segment, credit=float(index % 2)) for segment in sample.segments))
        for index, sample in enumerate(samples)
    )


def _others(samples: Sequence[Sample], vocabulary: int) -> list[Sample]:
    """Return as many samples of another policy, which share their prompts only with each other."""
    return [
        replace(
            sample,
            sample_id=f"other {sample.sample_id}",
            group_id=f"other {sample.group_id}",
            attempt_id=f"other {sample.attempt_id}",
            token_ids=tuple((token + _OFFSET) % vocabulary for token in sample.token_ids),
        )
        for sample in samples
    ]


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
