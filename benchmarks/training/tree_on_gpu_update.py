"""Updates by one engine on a GPU, measured: ``tree_on_gpu.py`` starts this as a process of its own."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Literal, cast

from benchmarks.training.tree_update import AT_REST, Sizes, as_sampled, length, turns
from benchmarks.training.wide_layers import write_model
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.training import device
from lightning_trainer.training.settings import TrainerSettings

_SIZES = Sizes(common=0, task=800, sampled=120, observed=80, members=4)
_BUDGET = 16_384
"""Tokens of a micro-batch, of both engines."""
_UPDATES = 3


def main(engine: Literal["tree", "stock"], size: str, folder: Path, groups: int) -> None:
    device.choose("cuda")
    import torch
    from safetensors.torch import save_file

    from lightning_trainer.training.update.worker import UpdateWorker

    model_dir = folder / "model"
    if not model_dir.exists():
        write_model(size, model_dir)
    settings = TrainerSettings(
        policy="benchmark",
        model_dir=model_dir,
        optimizer=AT_REST,
        training=TrainingConfig(
            attention=engine,
            device="cuda",
            dtype="bfloat16",
            gradient_checkpointing=True,
            max_tokens_per_micro_batch=_BUDGET,
        ),
    )
    worker = UpdateWorker(settings)
    samples = as_sampled(turns(groups, worker.vocabulary_size, _SIZES), worker, folder / "logprobs.json")
    advantages = {
        sample.sample_id: [bit * (-1.0) ** index for bit in sample.loss_mask] for index, sample in enumerate(samples)
    }
    gradients: dict[str, torch.Tensor] = {}
    module: Any = worker.module

    def keep_gradients(*_: Any) -> None:
        for name, parameter in module.named_parameters():
            gradients[name] = parameter.grad.full_tensor().float().cpu()

    def timed() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        worker.train(samples, advantages)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    kept = worker.engine.optimizer.register_step_pre_hook(keep_gradients)
    began = time.perf_counter()
    update = worker.train(samples, advantages)
    first_s = time.perf_counter() - began
    kept.remove()
    torch.cuda.reset_peak_memory_stats()
    seconds = sorted(timed() for _ in range(_UPDATES))
    out = folder / engine
    out.mkdir()
    save_file(gradients, out / "gradients.safetensors")
    run = {
        "samples": len(samples),
        "computed": update.tokens_computed,
        "seconds": seconds[len(seconds) // 2],
        "first_s": first_s,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "loss": update.metrics["loss"],
        "grad_norm": length(gradients.values()),
        "attention": module.config._attn_implementation,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    (out / "run.json").write_text(json.dumps(run))


if __name__ == "__main__":
    chosen, width, where, count = sys.argv[1:]
    main(cast(Literal["tree", "stock"], chosen), width, Path(where), int(count))
