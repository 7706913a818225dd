"""``[[prompt]]``: how better texts of a named prompt are proposed (docs/prompts.md)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lightning_trainer.config.model_endpoint import ModelEndpoint, SectionName
from lightning_trainer.config.sections import Section


class ReflectConfig(ModelEndpoint):
    """``kind = "reflect"``: a model reads attempts with their rewards and writes a better text."""

    SECTION: ClassVar[str] = "prompt"

    kind: Literal["reflect"]
    timeout_s: float = Field(default=180.0, gt=0, le=3600)
    max_answer_tokens: int = Field(default=8192, ge=16)
    temperature: float | None = Field(default=1.0, ge=0, le=2)
    """High, because a model that always says the same about the same attempts proposes nothing new."""
    max_chars: int = Field(default=8000, ge=500)
    attempts: int = Field(default=6, ge=1, le=64)
    """How many attempts it reads at once."""


class ExamplesConfig(Section):
    """``kind = "examples"``: attempts that went well are shown below the text; no model is asked."""

    kind: Literal["examples"] = "examples"
    name: SectionName
    most: int = Field(default=3, ge=1, le=64)
    """Attempts that are shown at once."""
    least_reward: float = 1.0
    """The least reward of an attempt that is shown."""
    max_chars: int = Field(default=2000, ge=100)
    """Longest attempt that is shown; longer ones are left out, because half an example teaches only half."""


AnyPrompt = ReflectConfig | ExamplesConfig
PromptConfig = Annotated[AnyPrompt, Field(discriminator="kind")]
