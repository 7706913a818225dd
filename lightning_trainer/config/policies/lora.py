"""``lora`` of a policy: a low-rank adapter is trained instead of the model, which stays as it is.

A layer computes ``W x + (alpha / rank) B A x`` with W frozen, A of shape ``[rank, in]`` and B of shape ``[out, rank]``.
B starts at zero, so version 0 is the model itself. Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from lightning_trainer.config.section import Section

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]

_NOT_LINEAR = ("embed_tokens", "lm_head")


class LoraConfig(Section):
    """The adapter's size and place. There is no dropout: the probe and the loss are functions of the weights alone."""

    rank: int = Field(default=16, ge=1, le=512)
    alpha: int = Field(default=32, ge=1)
    target_modules: Literal["all-linear"] | tuple[ModuleName, ...] = Field(default="all-linear")
    """``all-linear``: every linear layer but the output; else the layers' last names (``["q_proj", "v_proj"]``)."""

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
