"""``[[policy.trusted]]``: engines besides the daemon's own whose calls a policy learns from."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from lightning_instrumentation.routing.hosts import canonical_host
from pydantic import Field, field_validator

from lightning_trainer.config.sections import Section


class TrustedEngine(Section):
    """``[[policy.trusted]]``: an engine besides the daemon's own whose answers the policy learns from."""

    host: str
    """``host`` (any port), ``host:port`` or a URL, as in ``LIGHTNING_TRUSTED_HOSTS``."""
    model: str = Field(min_length=1)
    """The name under which it serves the policy's weights; its answers under another name are not the policy's."""
    version: Annotated[int, Field(ge=0, strict=True)] | Literal["unknown"]
    """The policy's version whose weights it serves; 0 is the model that the policy starts from."""
    logprobs: Literal["raw", "processed"] = "raw"
    """``raw``, vLLM's default: under the model's own distribution, so only calls at temperature 1 without penalties or
    a bias can be trained. ``processed``: under the distribution that the tokens were drawn from (``--logprobs-mode
    processed_logprobs``)."""

    @field_validator("host")
    @classmethod
    def _readable(cls, host: str) -> str:
        try:
            named, _ = _place(host)
        except ValueError as error:
            raise ValueError(f"it cannot be read ({error}); write host:port") from error
        if not named:
            raise ValueError("it has no host; write host:port")
        return host

    def serves(self, server: str, model: str) -> bool:
        """Whether it is at ``server``, as ``Call.server`` names it, and serves the policy's weights as ``model``."""
        host, port = _place(self.host)
        seen_host, seen_port = _place(server)
        return model == self.model and host == seen_host and port in (None, seen_port)


def _place(host: str) -> tuple[str, int | None]:
    parts = urlsplit(host if "//" in host else f"//{host}")
    return canonical_host(parts.hostname or "") if parts.hostname else "", parts.port
