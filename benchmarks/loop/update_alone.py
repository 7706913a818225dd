"""The trainer without the loop around it: the last step's batch once more in this process, under a profiler."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loop.parts import seconds_of_parts
from lightning_trainer.config import Config
from lightning_trainer.serving.publication import Publication
from lightning_trainer.training.settings import TrainerSettings, trainer_settings
from lightning_trainer.types import TrainingBatch

_TRACE = "update.json"


@dataclass(frozen=True, slots=True)
class UpdateAlone:
    parts: Mapping[str, float]
    """Seconds of the last step: forward, backward, and optimizer together."""
    cpu_s: float
    """CPU-seconds of that step."""
    export_s: float
    """Seconds to write the weights to a file and to score the probe."""
    publication: Publication


async def update_alone(
    config: Config, model_dir: Path, batches: Sequence[TrainingBatch], weights: Path, folder: Path, traces: Path
) -> UpdateAlone:
    """Take the steps again, the last one under the profiler, and publish.

    Args:
        batches: as the daemon trained them; all but the last warm up.
        weights: the file that is published.
        traces: the folder in which the trace is put.
    """
    settings = trainer_settings(config, config.only_policy, model_dir, folder)
    return await asyncio.to_thread(_update, settings, batches, weights, traces / _TRACE)


def _update(settings: TrainerSettings, batches: Sequence[TrainingBatch], weights: Path, trace: Path) -> UpdateAlone:
    from torch.profiler import ProfilerActivity, profile

    from lightning_trainer.training.trainer import Trainer

    trainer = Trainer(settings)
    for batch in batches[:-1]:
        trainer.step(batch)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        began = time.process_time()
        trainer.step(batches[-1])
        cpu_s = time.process_time() - began
    profiler.export_chrome_trace(str(trace))
    began = time.perf_counter()
    publication = trainer.publish(weights, 1)
    export_s = time.perf_counter() - began
    return UpdateAlone(seconds_of_parts(trace), cpu_s, export_s, publication)
