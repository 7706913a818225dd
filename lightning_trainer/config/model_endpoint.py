"""What the sections of ``lightning.toml`` that ask a model have in common, and what asking may cost."""

from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from lightning_trainer.config.sections import VARIABLE, Section

SectionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]

_ANTHROPIC = "https://api.anthropic.com/v1"


class BudgetConfig(Section):
    """``[judge.budget]``: what a judge may spend on a step, a canary, or one run of ``lightning-trainer judge``;
    ``[prompt.budget]``: what improving a prompt may spend, from a daemon's start to its end."""

    calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    """Tokens of questions and answers together."""
    money: float | None = Field(default=None, gt=0)
    """In the currency of the prices."""
    price_input: float | None = Field(default=None, ge=0)
    """Price of a million tokens of questions."""
    price_output: float | None = Field(default=None, ge=0)
    """Price of a million tokens of answers."""

    @model_validator(mode="after")
    def _money_has_prices(self) -> Self:
        if self.money is not None and (self.price_input is None or self.price_output is None):
            raise ValueError(
                f"money = {self.money:g} can only be kept where price_input and price_output are known (of a million "
                "tokens); add them, or limit tokens"
            )
        return self


class Asked(Section):
    """Settings of everything that is asked questions: a model, or a program."""

    SECTION: ClassVar[str]
    """The section's name in the file."""

    name: SectionName
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Limit of one question to the model, including the waits for a busy endpoint, or of one run of the program."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Questions, or programs, at once."""


class ModelEndpoint(Asked):
    """Settings of a model that is asked over HTTP."""

    model: str = Field(min_length=1)
    """The model's name at the endpoint."""
    base_url: str = "https://api.openai.com/v1"
    """Base URL of the endpoint, with ``/v1``; with ``api = "anthropic"`` that of Anthropic unless given."""
    api: Literal["openai", "anthropic"] = "openai"
    """Chat completions, or messages."""
    api_key_env: str | None = Field(default=None, pattern=VARIABLE)
    """The environment variable that holds the key; absent: none is sent."""
    instructions: str | None = Field(default=None, max_length=20_000)
    """What matters, in your own words."""
    max_chars: int = Field(default=20_000, ge=500)
    """Longest attempt in a question; a longer one is cut in the middle, and the model is told."""
    max_answer_tokens: int = Field(default=2048, ge=16)
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    retries: int = Field(default=2, ge=0, le=10)
    """How often the model is asked again, with the reason, after an answer that cannot be used."""
    structured: bool = True
    """Ask the endpoint to follow the answer's schema; an endpoint that refuses the schema is asked without it."""
    budget: BudgetConfig = BudgetConfig()

    @model_validator(mode="before")
    @classmethod
    def _endpoint_of_the_api(cls, said: Any) -> Any:
        # Otherwise one provider would get the attempts and the key that are meant for the other.
        if isinstance(said, dict) and said.get("api") == "anthropic":
            return {"base_url": _ANTHROPIC, **said}
        return said

    @field_validator("base_url")
    @classmethod
    def _a_url(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("write a base URL, like https://api.openai.com/v1")
        if urlsplit(url).username is not None:
            # Sentences and spans name the endpoint; its password would be in them.
            raise ValueError("it holds a user name or a password; leave them out, and name a key with api_key_env")
        return url.rstrip("/")
