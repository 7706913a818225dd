"""How a policy's weights are updated: the optimizer, and LoRA adapters instead of full weights."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from lightning_trainer.config.sections import Section

# ``optimizer`` of a policy.

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """``optimizer``: AdamW."""

    lr: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Peak learning rate; ``schedule`` says how it changes."""
    schedule: Literal["constant", "cosine"] = "constant"
    """``cosine``: falls to ``min_lr_ratio`` of ``lr`` over ``total_steps``, and stays there."""
    total_steps: int | None = Field(default=None, ge=1)
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first steps with a lower learning rate: step ``k`` of ``n`` takes ``k / (n + 1)`` of it. With another
    strategy than ``fsdp2`` the warm-up is verl's, whose first step has a rate of 0."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    clip_grad: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> "OptimizerConfig":
        if self.schedule == "cosine" and self.total_steps is None:
            raise ValueError(
                'schedule "cosine" falls over total_steps, which is not set; set it to the number of steps'
            )
        if self.total_steps is not None and self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps}, not below total_steps, {self.total_steps}; make it smaller"
            )
        return self


# ``lora`` of a policy: a low-rank adapter is trained instead of the model, which stays as it is.
#
# A layer computes ``W x + (alpha / rank) B A x`` with W frozen, A of shape ``[rank, in]`` and B of shape ``[out,
# rank]``. B starts at zero, so version 0 is the model itself. Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]

_NOT_LINEAR = ("embed_tokens", "lm_head")


class LoraConfig(Section):
    """The adapter's size and target layers. No dropout: the probe and the loss are functions of the weights alone."""

    rank: int = Field(default=16, ge=1, le=512)
    alpha: int = Field(default=32, ge=1)
    target_modules: Literal["all-linear"] | tuple[ModuleName, ...] = Field(default="all-linear")
    """``all-linear``: all linear layers except the output; else the ends of layer names (``["q_proj", "v_proj"]``)."""

    @field_validator("target_modules")
    @classmethod
    def _linear_layers(cls, modules: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not modules:
            raise ValueError('target_modules is empty; name layers, or leave it out for "all-linear"')
        if wrong := [name for name in modules if name in _NOT_LINEAR]:
            raise ValueError(
                f"target_modules names {wrong[0]!r}, which the engine serves without an adapter; leave it out"
            )
        return modules
