"""verl's engine and optimizer configurations by strategy: FSDP2 as we tune it, the others as verl does.

Trained weights, gradients and AdamW's moments are float32 in FSDP; the products are in ``dtype``. Settings that a
strategy of verl's own does not have are left out.
"""

from dataclasses import fields
from typing import Any

from verl.workers import config as verl

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import TrainerSettings

_VERL_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
_ENGINES: dict[str, tuple[type[Any], type[Any]]] = {
    "fsdp": (verl.FSDPEngineConfig, verl.FSDPOptimizerConfig),
    "fsdp2": (verl.FSDPEngineConfig, verl.FSDPOptimizerConfig),
    "fsdp_turbo": (verl.FSDPEngineConfig, verl.FSDPOptimizerConfig),
    "megatron": (verl.McoreEngineConfig, verl.McoreOptimizerConfig),
    "torchtitan": (verl.TorchtitanEngineConfig, verl.TorchtitanOptimizerConfig),
    "veomni": (verl.VeOmniEngineConfig, verl.VeOmniOptimizerConfig),
    "automodel": (verl.AutomodelEngineConfig, verl.AutomodelOptimizerConfig),
}


def engine_config(settings: TrainerSettings) -> Any:
    """Return verl's configuration of the strategy's engine.

    Raises:
        TrainingError: the strategy cannot do what the policy asks for.
    """
    _refuse_what_only_fsdp2_does(settings)
    training = settings.training
    on_gpu = training.device == "cuda"
    wanted: dict[str, Any] = {
        "strategy": training.strategy,
        "dtype": training.dtype,
        "param_offload": bool(training.param_offload),
        "optimizer_offload": bool(training.optimizer_offload),
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": training.max_tokens_per_micro_batch,
        "infer_max_token_len_per_gpu": training.max_tokens_per_micro_batch,
        "use_torch_compile": False,
        "seed": training.seed,
    }
    if training.strategy.startswith("fsdp"):
        # The tree engine rounds only products (``dtype``); verl's own rounds the parameters it computes with. So does
        # each of several GPUs, since autocast would keep a copy of the whole model on every one of them.
        divided = on_gpu and training.world_size > 1
        rounds = divided or training.attention == "stock" or training.strategy != "fsdp2"
        wanted |= {
            "model_dtype": "fp32",
            "mixed_precision": {
                "param_dtype": _VERL_DTYPES[training.dtype] if rounds else "fp32",
                "reduce_dtype": "fp32",
                "buffer_dtype": "fp32",
            },
            # Each of several GPUs holds only a part of the weights, also between two layers.
            "reshard_after_forward": divided,
            "use_no_sync_for_gradient_accumulation": not divided,
            "use_remove_padding": False,  # the model's own configuration decides
        }
    return _of(_ENGINES[training.strategy][0], wanted)


def optimizer_config(settings: TrainerSettings, lr: float | None = None) -> Any:
    """Return verl's configuration of AdamW.

    Args:
        lr: the learning rate, if it is not the policy's.
    """
    optimizer = settings.optimizer
    rate = optimizer.lr if lr is None else lr
    least = rate * optimizer.min_lr_ratio
    wanted: dict[str, Any] = {
        "lr": rate,
        "weight_decay": optimizer.weight_decay,
        "betas": optimizer.betas,
        "clip_grad": optimizer.clip_grad,
        "lr_warmup_steps": optimizer.warmup_steps,
        "total_training_steps": optimizer.total_steps or 1,  # a constant schedule does not read it
        # Each strategy has its own name for the same setting.
        "lr_scheduler_type": optimizer.schedule,
        "lr_decay_style": optimizer.schedule,
        "min_lr_ratio": optimizer.min_lr_ratio,
        "min_lr": least,
        "lr_min": least,
        # torchtitan has no constant rate: a decay to the full rate is one.
        "decay_type": "cosine" if optimizer.schedule == "cosine" else "linear",
        "min_lr_factor": optimizer.min_lr_ratio if optimizer.schedule == "cosine" else 1.0,
    }
    if settings.training.strategy.startswith("fsdp"):
        wanted["override_optimizer_config"] = {"fused": True}
    return _of(_ENGINES[settings.training.strategy][1], wanted)


def _of(kind: type[Any], wanted: dict[str, Any]) -> Any:
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in wanted.items() if name in known})


def _refuse_what_only_fsdp2_does(settings: TrainerSettings) -> None:
    training = settings.training
    if training.strategy == "fsdp2":
        return
    refused = {
        "attention": training.attention == "tree" and 'attention = "tree"',
        "lora": settings.lora is not None and "a LoRA adapter",
        "stages": len(settings.of_stages) > 1 and "several stages",
        "critic": any(stage.needs_critic for stage in settings.of_stages) and "a critic",
        "dtype": training.strategy == "megatron" and training.dtype == "float32" and 'dtype = "float32"',
    }
    if what := next((what for what in refused.values() if what), None):
        raise TrainingError(f'strategy = "{training.strategy}" does not train with {what} here; use strategy = "fsdp2"')
