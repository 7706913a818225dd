"""``[training]``: how the trainer is started."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lightning_trainer.config.cores import Dtype, fast_dtype
from lightning_trainer.config.section import Section

_AUTO = "auto"


class TrainingConfig(Section):
    """``[training]``: the update engine."""

    backend: Literal["ray", "inprocess"] = "ray"
    attention: Literal["auto", "tree", "stock"] = "auto"
    """``tree`` computes every shared prefix once; ``stock`` is verl's own engine; ``auto`` takes that where it must."""
    dtype: Annotated[Dtype, BeforeValidator(lambda value: fast_dtype() if value == _AUTO else value)] = Field(
        default=_AUTO, validate_default=True
    )
    """Precision of the matrix products; weights, gradients and optimiser are float32. ``auto`` is read as bfloat16 on
    processors that have instructions for it, else as float32."""
    world_size: int = Field(default=1, ge=1)
    """Processes that hold a part of the weights each and divide a batch (FSDP2); more than one need Ray."""
    threads: int | None = Field(default=None, ge=1)
    """Of each process; their share of the cores when absent."""
    max_tokens_per_micro_batch: int = Field(default=8192, ge=16)
    """Unique tokens that go through the model at once."""
    gradient_checkpointing: bool = False
    policies_at_once: int = Field(default=1, ge=1)
    """How many policies' trainers may compute at the same time; the others wait for their turn."""
    seed: int = 0

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
