"""Our settings in verl's words."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from verl.trainer.config import CheckpointConfig, RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import (
    FSDPActorConfig,
    FSDPCriticConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.serving.host.weights.weight_file import linear_layers, model_headers
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.engines.strategies import engine_config, optimizer_config
from lightning_trainer.training.update.losses import over_the_batch

FLASH = "flash_attention_2"
_SAVED = ["model", "optimizer", "extra"]
"""``extra``: the learning-rate schedule and the random state."""
_NO_BOUND = 1e9
"""Stands for no bound on a ratio: infinity times an advantage of 0 is not a number."""


ModelKind: TypeAlias = Literal["language_model", "value_model"]
"""verl's names: with a head of logits, or with one of a single value per token."""


def worker_config(
    settings: TrainerSettings,
    model_dir: Path,
    kind: ModelKind = "language_model",
    lr: float | None = None,
    lora: LoraConfig | None = None,
) -> TrainingWorkerConfig:
    """Return the configuration of verl's TrainingWorker: model, engine, AdamW, checkpoints.

    Args:
        lr: the learning rate, if it is not the policy's.
        lora: the adapter that is trained instead of the model.

    Raises:
        TrainingError: the folder holds no model, or the strategy cannot do what the policy asks for.
    """
    if not (model_dir / "config.json").is_file():
        raise TrainingError(f"{model_dir} is not a model folder: it has no config.json")
    return TrainingWorkerConfig(
        model_type=kind,
        model_config=HFModelConfig(
            path=str(model_dir),
            load_tokenizer=_has_tokenizer(model_dir),
            override_config={"attn_implementation": _attention(settings)},
            use_remove_padding=_attention(settings) == FLASH,
            enable_gradient_checkpointing=settings.training.gradient_checkpointing,
            **_lora(lora, model_dir),
        ),
        engine_config=engine_config(settings),
        optimizer_config=optimizer_config(settings, lr),
        checkpoint_config=CheckpointConfig(save_contents=_SAVED, load_contents=_SAVED, save_lora_only=lora is not None),
    )


def _attention(settings: TrainerSettings) -> str:
    """Return the attention that the model is loaded with; the tree engine replaces it with its own."""
    training = settings.training
    on_gpu = training.device == "cuda" and (training.attention == "stock" or training.strategy != "fsdp2")
    return FLASH if on_gpu and find_spec("flash_attn") is not None else "sdpa"


def _lora(lora: LoraConfig | None, model_dir: Path) -> dict[str, Any]:
    if lora is None:
        return {}
    modules = list(lora.target_modules)
    if isinstance(lora.target_modules, str):
        modules = _beside_experts(model_dir) or lora.target_modules
    return {"lora_rank": lora.rank, "lora_alpha": lora.alpha, "target_modules": modules}


def _beside_experts(model_dir: Path) -> list[str] | None:
    """Return the linear layers of a mixture of experts without experts and routers; None for any other model.

    PEFT's "all-linear" takes those too, as tensors of a whole layer that vLLM does not serve as an adapter.
    """
    try:
        of_experts = {name.split(".")[-2] for name in model_headers(model_dir) if ".experts." in name}
    except ValueError:
        return None  # no safetensors; loading the model will say so
    return sorted(set(linear_layers(model_dir)) - of_experts - {"gate", "router"}) if of_experts else None


def with_stock_precision(config: TrainingWorkerConfig, settings: TrainerSettings) -> TrainingWorkerConfig:
    """Return the configuration for verl's own engine, whatever ``attention`` says."""
    stock = replace(settings, training=settings.training.model_copy(update={"attention": "stock"}))
    return replace(config, engine_config=engine_config(stock))


def loss_config(settings: TrainerSettings) -> FSDPActorConfig:
    """Return the configuration of verl's ``ppo_loss``.

    Raises:
        TrainingError: the policy loss is unknown.
    """
    algorithm = settings.algorithm
    if algorithm.policy_loss not in POLICY_LOSS_REGISTRY:
        known = ", ".join(sorted(map(str, POLICY_LOSS_REGISTRY)))
        raise TrainingError(f"unknown policy loss {algorithm.policy_loss!r}; there are {known}")
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio=algorithm.clip_ratio_low,
        clip_ratio_low=algorithm.clip_ratio_low,
        clip_ratio_high=algorithm.clip_ratio_high,
        clip_ratio_c=min(algorithm.clip_ratio_c, _NO_BOUND),
        loss_agg_mode=algorithm.loss_agg_mode,
        loss_scale_factor=_scale_factor(settings),
        entropy_coeff=algorithm.entropy_coeff,
        use_kl_loss=algorithm.kl_loss_coef > 0,
        kl_loss_coef=algorithm.kl_loss_coef,
        kl_loss_type=algorithm.kl_loss_type,
        tau_pos=algorithm.tau_pos,
        tau_neg=algorithm.tau_neg,
        use_torch_compile=False,
        policy_loss=PolicyLossConfig(
            loss_mode=over_the_batch(algorithm.policy_loss),
            clip_cov_ratio=algorithm.clip_cov_ratio,
            clip_cov_lb=algorithm.clip_cov_lb,
            clip_cov_ub=algorithm.clip_cov_ub,
            kl_cov_ratio=algorithm.kl_cov_ratio,
            ppo_kl_coef=algorithm.ppo_kl_coef,
            dro_beta=algorithm.dro_beta,
            rollout_correction=RolloutCorrectionConfig(
                loss_type=algorithm.bypass_loss,
                rollout_is=algorithm.rollout_is,
                rollout_is_threshold=algorithm.rollout_is_threshold,
                rollout_is_batch_normalize=algorithm.rollout_is_batch_normalize,
                rollout_rs=algorithm.rollout_rs,
                rollout_rs_threshold=algorithm.rollout_rs_threshold,
            ),
        ),
    )


def value_loss_config(settings: TrainerSettings) -> FSDPCriticConfig:
    """Return the configuration of verl's ``value_loss``: a mean over tokens whatever the policy's loss is."""
    return FSDPCriticConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        cliprange_value=settings.algorithm.critic.cliprange_value,
        loss_agg_mode="token-mean",
    )


def _scale_factor(settings: TrainerSettings) -> int | None:
    """Return what ``seq-mean-token-sum-norm`` divides by; None for other modes.

    verl's own choice, the longest response of a micro-batch, would make the loss depend on how samples are put into
    micro-batches.
    """
    if settings.algorithm.loss_agg_mode != "seq-mean-token-sum-norm":
        return None
    return settings.algorithm.loss_scale_factor or settings.horizon


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
