"""``[gateway]``: the bounds on model calls."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from lightning_trainer.config.section import Section


class GatewayConfig(Section):
    """``[gateway]``: the bounds on model calls."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=2**16)
    """Of a call; more is answered 413."""
    max_concurrent: int = Field(default=512, ge=1)
    """Calls in flight; more are answered 429 with Retry-After."""
    queue_timeout_s: float = Field(default=180.0, gt=0)
    """How long a call is held while the engine is starting or changing weights; then 503 with Retry-After."""
    silence_timeout_s: float = Field(default=600.0, gt=0)
    """How long the engine may send nothing; then 503, or an error that ends the stream."""
    embeddings: str | None = None
    """Base URL, with ``/v1``, of the server that embeddings are passed on to; absent: they are refused."""
    embeddings_key: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The environment variable that holds its API key."""

    @field_validator("embeddings")
    @classmethod
    def _a_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"embeddings is {url!r}; write a base URL, like https://api.openai.com/v1")
        return url

    @model_validator(mode="after")
    def _a_key_for_somebody(self) -> Self:
        if self.embeddings_key is not None and self.embeddings is None:
            raise ValueError(f"embeddings_key = {self.embeddings_key!r} is for nobody: set embeddings, or leave it out")
        return self
