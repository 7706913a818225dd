"""``optimizer`` of a policy."""

from typing import Literal

from pydantic import Field, model_validator

from lightning_trainer.config.section import Section


class OptimizerConfig(Section):
    """``optimizer``: AdamW."""

    lr: float = Field(default=1e-5, gt=0)
    """The highest; the schedule says what becomes of it."""
    schedule: Literal["constant", "cosine"] = "constant"
    """``cosine``: down to ``min_lr_ratio`` of it over ``total_steps``, and on at that."""
    total_steps: int | None = Field(default=None, ge=1)
    warmup_steps: int = Field(default=0, ge=0)
    """Linearly up from 0 in the first ones."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.99)
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
