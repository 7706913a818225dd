"""Our settings in verl's words."""

from pathlib import Path

from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import TrainerSettings

_VERL_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
_SAVED = ["model", "optimizer", "extra"]
"""``extra``: the learning-rate schedule and the random state."""


def worker_config(settings: TrainerSettings) -> TrainingWorkerConfig:
    """Return the configuration of verl's TrainingWorker: model, FSDP engine, AdamW, checkpoints.

    Raises:
        TrainingError: the model folder is none.
    """
    if not (settings.model_dir / "config.json").is_file():
        raise TrainingError(f"{settings.model_dir} is not a model folder: it has no config.json")
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(settings.model_dir),
            load_tokenizer=_has_tokenizer(settings.model_dir),
            override_config={"attn_implementation": "sdpa"},
            use_remove_padding=False,
            enable_gradient_checkpointing=settings.gradient_checkpointing,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            mixed_precision={
                # The tree engine rounds products alone (``dtype``); verl's own rounds the parameters it computes with.
                "param_dtype": "fp32" if settings.attention == "tree" else _VERL_DTYPES[settings.dtype],
                "reduce_dtype": "fp32",
                "buffer_dtype": "fp32",
            },
            dtype=settings.dtype,
            use_torch_compile=False,
            reshard_after_forward=False,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=settings.max_tokens_per_micro_batch,
            infer_max_token_len_per_gpu=settings.max_tokens_per_micro_batch,
            use_remove_padding=False,
            seed=settings.seed,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            clip_grad=settings.clip_grad,
            lr_warmup_steps=settings.warmup_steps,
            total_training_steps=settings.total_steps or 1,  # a constant schedule does not read it
            lr_scheduler_type=settings.schedule,
            min_lr_ratio=settings.min_lr_ratio,
            override_optimizer_config={"fused": True},
        ),
        checkpoint_config=CheckpointConfig(save_contents=_SAVED, load_contents=_SAVED),
    )


def loss_config(settings: TrainerSettings) -> FSDPActorConfig:
    """Return the configuration of verl's ``ppo_loss``.

    Raises:
        TrainingError: the policy loss is unknown.
    """
    if settings.policy_loss not in POLICY_LOSS_REGISTRY:
        known = ", ".join(sorted(map(str, POLICY_LOSS_REGISTRY)))
        raise TrainingError(f"unknown policy loss {settings.policy_loss!r}; there are {known}")
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio=settings.clip_ratio_low,
        clip_ratio_low=settings.clip_ratio_low,
        clip_ratio_high=settings.clip_ratio_high,
        clip_ratio_c=settings.clip_ratio_c,
        loss_agg_mode=settings.loss_agg_mode,
        use_torch_compile=False,
        policy_loss=PolicyLossConfig(loss_mode=settings.policy_loss),
    )


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
