"""``[daemon]``: where the daemon listens, and who may talk to it."""

from pathlib import Path
from typing import Self

from lightning_instrumentation.redaction.rules import redactor
from pydantic import Field, field_validator, model_validator

from lightning_trainer.config.section import Section


class DaemonConfig(Section):
    """``[daemon]``: where the daemon listens and keeps what it must not lose."""

    host: str = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65535)
    """0 picks a free port; it is printed and written to ``state_dir``/daemon.json."""
    state_dir: Path = Path(".lightning")
    token: str | None = Field(default=None, min_length=16)
    """Required of every request when the host is not loopback."""
    max_body_bytes: int = Field(default=64 * 2**20, ge=2**16)
    """Of a delivery of spans, as sent and inflated; more is answered 413."""
    trusted_hosts: tuple[str, ...] = ()
    """Names, beside loopback and ``host``, by which the daemon is called; for any other ``Host`` it answers 421."""
    redact: tuple[str, ...] = ()
    """Taken out of what the gateway records, beside keys: ``emails``, ``regex:...``; ``none`` takes nothing out."""

    @field_validator("redact")
    @classmethod
    def _rules_that_can_be_read(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        redactor(rules)
        return rules

    @model_validator(mode="after")
    def _token_beyond_loopback(self) -> Self:
        if self.host not in ("127.0.0.1", "::1", "localhost") and self.token is None:
            raise ValueError(f"host {self.host!r} is reachable from other machines: set a token of 16+ characters")
        return self
