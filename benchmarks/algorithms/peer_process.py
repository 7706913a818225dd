"""Runs in the peers' environment, which has TRL and torchrl but nothing of the project: their code on given tensors.

TRL's trainers are made as a user makes them. Only what would draw tokens is replaced: ``_generate`` returns the given
tokens, and the reward function the given rewards. Advantages, reference, importance weights, and loss are TRL's.
"""

import contextlib
import json
import sys
import tempfile
from importlib.metadata import version
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from torchrl.objectives.value.functional import (  # pyright: ignore[reportMissingImports]
    generalized_advantage_estimate,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import (  # pyright: ignore[reportMissingImports]
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer  # pyright: ignore[reportMissingImports]

_FROM_ROLLOUTS = {
    "GRPOTrainer": (GRPOTrainer, GRPOConfig),
    "GMPOTrainer": (GMPOTrainer, GMPOConfig),
    "RLOOTrainer": (RLOOTrainer, RLOOConfig),
}


def main() -> None:
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        print(json.dumps({name: version(name) for name in ("trl", "torchrl")}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line))), file=out, flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["trainer"] == "gae":
        return {"advantages": _gae(**{name: request[name] for name in ("rewards", "values", "gamma", "lam")})}
    with tempfile.TemporaryDirectory() as folder:
        if request["trainer"] in _FROM_ROLLOUTS:
            trainer, inputs = _from_rollouts(request, folder)
        else:
            trainer, inputs = {"SFTTrainer": _sft, "DPOTrainer": _dpo}[request["trainer"]](request, folder)
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, inputs)
        trainer.model.zero_grad()
        loss.backward()
    gradients = {
        name: parameter.grad.clone().contiguous()
        for name, parameter in trainer.model.named_parameters()
        if parameter.grad is not None
    }
    save_file(gradients, request["gradients"])
    advantages = inputs.get("advantages")
    if advantages is not None:
        names = [sample["id"] for sample in request["samples"]]
        advantages = dict(zip(names, advantages.tolist(), strict=True))
    return {"loss": loss.item(), "advantages": advantages}


def _gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    columns = (torch.tensor(row)[None, :, None] for row in (values, [*values[1:], 0.0], rewards))
    done = torch.zeros(1, len(values), 1, dtype=torch.bool)
    done[0, -1] = True
    return generalized_advantage_estimate(gamma, lam, *columns, done)[0][0, :, 0].tolist()


def _from_rollouts(request: dict[str, Any], folder: str) -> tuple[Any, dict[str, Any]]:
    samples, arguments = request["samples"], dict(request["arguments"])
    weights, weights_max = arguments.pop("engine_weights", None), arguments.pop("engine_weights_max", None)
    on_policy = arguments.pop("on_policy", False)
    kind, configuration = _FROM_ROLLOUTS[request["trainer"]]
    groups = {sample["group"] for sample in samples}
    rows = [{"prompt": sample["group"]} for sample in samples]
    arguments = {
        "beta": 0.0,
        **arguments,
        "per_device_train_batch_size": len(samples),
        "num_generations": len(samples) // len(groups),
        "max_completion_length": request["horizon"],
        "temperature": 1.0,
    }
    trainer: Any = kind(
        model=request["policy"],
        reward_funcs=lambda completions, **_: [sample["reward"] for sample in samples],
        args=configuration(**_common(folder), **arguments),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(request["tokenizer"]),
    )
    if trainer.ref_model is not None:
        _overwrite(trainer.ref_model, request["reference"])
    trainer.current_gradient_accumulation_steps = 1
    prompts, completions = ([list(sample[part]) for sample in samples] for part in ("prompt", "completion"))
    texts = ["" for _ in samples]
    if kind is RLOOTrainer:
        trainer._generate = lambda _: (prompts, completions, texts)
    else:
        masks, behavior = ([sample[part] for sample in samples] for part in ("mask", "behavior"))
        drawn = (prompts, completions, masks, texts, behavior, {}, None, [[] for _ in samples])
        trainer._generate = lambda _: drawn
    if weights is not None:
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        trainer.vllm_importance_sampling_mode = weights
        trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = None, weights_max
    trainer.model.train()
    inputs = trainer._generate_and_score_completions(rows)
    if kind is not RLOOTrainer and weights is None and not on_policy:
        inputs["old_per_token_logps"] = inputs["sampling_per_token_logps"]
    return trainer, inputs


def _common(folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "report_to": [],
        "disable_tqdm": True,
        "seed": 0,
    }


def _overwrite(model: Any, folder: str) -> None:
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    model.load_state_dict(weights)


def _sft(request: dict[str, Any], folder: str) -> tuple[Any, dict[str, Any]]:
    trainer = SFTTrainer(
        model=request["policy"],
        args=SFTConfig(**_common(folder), per_device_train_batch_size=len(request["samples"]), **request["arguments"]),
        train_dataset=Dataset.from_list([{"prompt": "a", "completion": "b"}]),
        processing_class=AutoTokenizer.from_pretrained(request["tokenizer"]),
    )
    inputs, mask = _padded(request["samples"])
    return trainer, {**inputs, "labels": inputs["input_ids"].masked_fill(mask == 0, -100)}


def _dpo(request: dict[str, Any], folder: str) -> tuple[Any, dict[str, Any]]:
    trainer = DPOTrainer(
        model=request["policy"],
        ref_model=AutoModelForCausalLM.from_pretrained(request["reference"], dtype=torch.float32),
        args=DPOConfig(**_common(folder), per_device_train_batch_size=len(request["samples"]), **request["arguments"]),
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
        processing_class=AutoTokenizer.from_pretrained(request["tokenizer"]),
    )
    by_group = sorted(request["samples"], key=lambda sample: sample["group"])
    chosen = [sample for sample in by_group if sample["reward"] > 0]
    rejected = [sample for sample in by_group if sample["reward"] < 0]
    inputs, mask = _padded([*chosen, *rejected])
    return trainer, {**inputs, "completion_mask": mask}


def _padded(samples: list[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    longest = max(len(sample["prompt"]) + len(sample["completion"]) for sample in samples)
    ids, attention, mask = (torch.zeros(len(samples), longest, dtype=torch.long) for _ in range(3))
    for row, sample in enumerate(samples):
        prompt, whole = len(sample["prompt"]), [*sample["prompt"], *sample["completion"]]
        ids[row, : len(whole)] = torch.tensor(whole)
        attention[row, : len(whole)] = 1
        mask[row, prompt : len(whole)] = torch.tensor(sample["mask"])
    return {"input_ids": ids, "attention_mask": attention}, mask


if __name__ == "__main__":
    main()
