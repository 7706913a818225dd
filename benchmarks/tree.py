"""The tree engine against verl's stock engine: CPU-seconds of both on the same samples, in one run.

    python benchmarks/tree.py                 # 64 samples, SmolLM2-135M, one thread, about six minutes
    python benchmarks/tree.py --groups 2      # a quarter of it

Each engine has a process of its own, so that memory is its own too. The samples are groups of eight that share a
240-token prefix (instructions and worked examples), with 25 tokens of their own task and 35 sampled tokens each.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_COMMON, _TASK, _SAMPLED = 240, 25, 35
_MODEL = "embedded:smollm2-135m-instruct"


def main() -> None:
    options = _options()
    if options.engine:
        _measure(options)
        return
    from lightning_trainer.models.resolve import resolve_model

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-trainer" / "models"
    model_dir = resolve_model(options.model, cache)
    with tempfile.TemporaryDirectory() as folder:
        stock, tree = (_run(engine, model_dir, options, Path(folder)) for engine in ("stock", "tree"))
        largest, relative = _differences(Path(folder))
    _print_table(options, stock, tree, largest, relative)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=_MODEL, help=f"folder, Hugging Face id or built-in name ({_MODEL})")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=int, default=4096, help="tokens that go through the model at once")
    parser.add_argument("--engine", choices=("stock", "tree"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(engine: str, model_dir: Path, options: argparse.Namespace, folder: Path) -> dict:
    print(f"{engine} engine ...", flush=True)
    command = [sys.executable, __file__, "--engine", engine, "--model", str(model_dir), "--out", str(folder / engine)]
    command += ["--groups", str(options.groups), "--group-size", str(options.group_size)]
    command += ["--dtype", options.dtype, "--threads", str(options.threads), "--budget", str(options.budget)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(options.threads)})
    return json.loads((folder / engine / "run.json").read_text())


def _measure(options: argparse.Namespace) -> None:
    from safetensors.torch import save_file

    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.update.worker import UpdateWorker

    worker = UpdateWorker(
        TrainerSettings(
            policy="benchmark",
            model_dir=Path(options.model),
            attention=options.engine,
            dtype=options.dtype,
            threads=options.threads,
            max_tokens_per_micro_batch=options.budget,
        )
    )
    samples = _samples(options, worker.vocabulary_size)
    advantages = {
        sample.sample_id: [bit * (-1.0) ** index for bit in sample.loss_mask] for index, sample in enumerate(samples)
    }
    gradients = {}

    module: Any = worker.module

    def keep_gradients(*_) -> None:
        for name, parameter in module.named_parameters():
            gradients[name] = parameter.grad.full_tensor().clone()

    worker.engine.optimizer.register_step_pre_hook(keep_gradients)
    logprobs, infer_s = _cpu_seconds(lambda: worker.logprobs(samples))
    update, train_s = _cpu_seconds(lambda: worker.train(samples, advantages))
    options.out.mkdir()
    save_file(gradients, options.out / "gradients.safetensors")
    run = {
        "tokens": sum(len(sample.token_ids) for sample in samples),
        "computed": update.tokens_computed,
        "infer_s": infer_s,
        "train_s": train_s,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": update.metrics["loss"],
        "logprobs": logprobs,
    }
    (options.out / "run.json").write_text(json.dumps(run))


def _cpu_seconds(work):
    began = time.process_time()
    return work(), time.process_time() - began


def _samples(options: argparse.Namespace, vocabulary: int) -> list:
    from lightning_trainer.types import Sample, Segment

    source = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [source.randrange(vocabulary) for _ in range(count)]

    common, samples = tokens(_COMMON), []
    for group in range(options.groups):
        prompt = common + tokens(_TASK)
        for member in range(options.group_size):
            name, length = f"{group}-{member}", len(prompt) + _SAMPLED
            samples.append(
                Sample(
                    sample_id=name,
                    policy="benchmark",
                    agent="agent",
                    group_id=str(group),
                    attempt_id=name,
                    token_ids=(*prompt, *tokens(_SAMPLED)),
                    loss_mask=(0,) * len(prompt) + (1,) * _SAMPLED,
                    behaviour_logprobs=(0.0,) * len(prompt) + (-10.8,) * _SAMPLED,
                    segments=(Segment(len(prompt), length, name, 0, float(member % 2), name),),
                )
            )
    return samples


def _differences(folder: Path) -> tuple[float, float]:
    """Largest |tree - stock| of a gradient element, and of them all relative to the gradient's length."""
    from safetensors.torch import load_file

    stock, tree = (load_file(folder / engine / "gradients.safetensors") for engine in ("stock", "tree"))
    largest = max((tree[name] - stock[name]).abs().max().item() for name in stock)
    squared = sum((tree[name] - stock[name]).square().sum().item() for name in stock)
    return largest, (squared / sum(gradient.square().sum().item() for gradient in stock.values())) ** 0.5


def _print_table(options: argparse.Namespace, stock: dict, tree: dict, largest: float, relative: float) -> None:
    print(
        f"\n{options.groups * options.group_size} samples in groups of {options.group_size}: {_COMMON} common + "
        f"{_TASK} task + {_SAMPLED} sampled tokens, {options.dtype}, {options.threads} thread(s), CPU-seconds\n"
    )
    print(f"{'engine':8}{'tokens':>9}{'computed':>10}{'infer':>9}{'train':>9}{'peak GiB':>10}")
    for name, run in (("stock", stock), ("tree", tree)):
        print(
            f"{name:8}{run['tokens']:9d}{run['computed']:10d}{run['infer_s']:9.1f}{run['train_s']:9.1f}"
            f"{run['peak_gib']:10.1f}"
        )
    infer, train = stock["infer_s"] / tree["infer_s"], stock["train_s"] / tree["train_s"]
    print(f"{'ratio':8}{'':9}{stock['computed'] / tree['computed']:9.1f}x{infer:8.1f}x{train:8.1f}x")
    logprobs = max(
        abs(a - b) for rows in zip(stock["logprobs"], tree["logprobs"], strict=True) for a, b in zip(*rows, strict=True)
    )
    print(
        f"\nlargest difference: log-probability {logprobs:.1e} nats, loss {abs(stock['loss'] - tree['loss']):.1e}, "
        f"gradient element {largest:.1e}; gradient as a whole {relative:.1e} of its length"
    )


if __name__ == "__main__":
    main()
