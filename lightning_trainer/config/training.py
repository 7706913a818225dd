"""``[training]``: how the trainer is started, and what it computes on."""

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from lightning_trainer.config.hardware import Device, Dtype, GpuName, each_once, fast_dtype, trainable_device
from lightning_trainer.config.sections import Section, without_auto

_AUTO = "auto"

Strategy: TypeAlias = Literal["fsdp", "fsdp2", "fsdp_turbo", "megatron", "torchtitan", "veomni", "automodel"]
"""The engines in the registry of verl 0.9.1, by its names."""


class TrainingConfig(Section):
    """``[training]``: the update engine."""

    backend: Literal["ray", "inprocess"] = "ray"
    device: Annotated[Device, BeforeValidator(lambda value: trainable_device() if value == _AUTO else value)] = Field(
        default=_AUTO, validate_default=True
    )
    """``auto`` means "cuda" if this machine has a GPU and a torch that computes on it, else "cpu"."""
    gpus: tuple[GpuName, ...] | None = Field(default=None, min_length=1)
    """GPUs that trainers may use, by number or UUID; None: assigned automatically (docs/scale.md)."""
    gpus_per_process: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU that each trainer process asks Ray for; less than 1 shares a GPU with other trainers. None: a
    whole GPU, or an equal part of one if there are more trainers than GPUs."""
    strategy: Strategy = "fsdp2"
    """verl's engine. All except ``fsdp2`` compute only on GPUs, with ``attention = "stock"``, and need packages of
    their own."""
    attention: Literal["auto", "tree", "stock"] = "auto"
    """``tree`` computes every shared prefix once; ``stock`` is verl's own engine; ``auto``: ``stock`` if necessary."""
    dtype: Dtype = Field(default=_AUTO, validate_default=True)
    """Precision of the matrix products, and of linear layers below an adapter; trained weights, gradients and optimizer
    are float32. ``auto`` means bfloat16 on GPUs and on processors that have instructions for it, else float32."""
    world_size: int = Field(default=1, ge=1)
    """Processes that each hold a part of the weights and share a batch (FSDP2); more than one need Ray."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of each process; absent: its share of the cores."""
    max_tokens_per_micro_batch: int = Field(default=8192, ge=16)
    """Unique tokens that go through the model at once."""
    gradient_checkpointing: bool = False
    """Keeps only each layer's inputs and recomputes the rest in the backward pass, which takes a third more time."""
    param_offload: bool | None = None
    """Keeps the weights in the machine's memory while nothing is computed; None: if an engine or another trainer shares
    the GPU."""
    optimizer_offload: bool | None = None
    """The same for the optimizer's two moments."""
    share_base: bool = True
    """LoRA policies with the same model and ``lora`` share a trainer: one copy of the model, one adapter each."""
    policies_at_once: int = Field(default=1, ge=1)
    """How many trainers may compute at the same time; the others wait for their turn."""
    seed: int = 0

    _gpus = field_validator("gpus")(each_once)

    @model_validator(mode="before")
    @classmethod
    def _auto_is_the_default(cls, given: Any) -> Any:
        return without_auto(given, "device")

    @field_validator("dtype", mode="before")
    @classmethod
    def _fast_on_device(cls, value: Any, info: ValidationInfo) -> Any:
        if value != _AUTO:
            return value
        return "bfloat16" if info.data.get("device") == "cuda" else fast_dtype()

    @model_validator(mode="after")
    def _device_can(self) -> Self:
        if self.strategy != "fsdp2" and self.attention == "tree":
            raise ValueError(f'attention = "tree" is computed by fsdp2 alone, not by {self.strategy}; set "stock"')
        if self.device == "cuda":
            return self
        if self.strategy != "fsdp2":
            raise ValueError(
                f'strategy = "{self.strategy}" computes on GPUs alone and the device is "cpu" here; leave strategy out'
            )
        for name in ("gpus", "gpus_per_process", "param_offload", "optimizer_offload"):
            if getattr(self, name):
                raise ValueError(f'{name} is about GPUs and the device is "cpu" here; leave it out')
        return self

    @model_validator(mode="after")
    def _processes_need_ray(self) -> Self:
        if self.world_size > 1 and self.backend != "ray":
            raise ValueError(f'world_size = {self.world_size} needs backend = "ray", not "{self.backend}"')
        if self.policies_at_once > 1 and self.backend != "ray":
            raise ValueError(
                f'policies_at_once = {self.policies_at_once} needs backend = "ray": trainers of one process '
                "compute one after the other; leave policies_at_once out"
            )
        return self
