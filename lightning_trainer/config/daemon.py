"""``[daemon]``: where the daemon listens, and who may talk to it."""

from pathlib import Path
from typing import Literal, Self

from lightning_instrumentation.access.proof import NO_TOKEN
from lightning_instrumentation.redaction.rules import redactor
from pydantic import Field, field_validator, model_validator

from lightning_trainer.config.sections import SHORTEST_TOKEN, TokenSection, sendable

_ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that stand for all addresses, each with the address that programs on this machine connect to instead."""


class DaemonConfig(TokenSection):
    """``[daemon]``: where the daemon listens, who may use it, and where it keeps its state."""

    host: str = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65535)
    """0 picks a free port; it is printed and written to ``state_dir``/daemon.json."""
    state_dir: Path = Path(".lightning")
    tls_cert: Path | None = None
    """Certificate and its chain, PEM: the daemon then speaks only TLS, on all its routes."""
    tls_key: Path | None = None
    """The certificate's private key, PEM, without a passphrase; readable only by its owner."""
    token: str | None = None
    """Required of every request. If neither this nor ``token_env`` is set, one is made at the first start and kept in
    ``state_dir``/token, where your own clients find it. ``none``: anyone who can reach the port may do anything;
    allowed only on loopback."""
    max_body_bytes: int = Field(default=64 * 2**20, ge=2**16)
    """Largest delivery of spans, both as sent and decompressed; a larger one is answered 413."""
    trusted_hosts: tuple[str, ...] = ()
    """Host names by which requests may address the daemon, besides loopback, ``host`` and those of its certificate; any
    other ``Host`` is answered 421. If ``host`` stands for all addresses, people are told one of these."""
    redact: tuple[str, ...] = ()
    """What is removed from every stored text, besides keys: ``emails``, ``regex:...``; ``none`` removes nothing."""
    redact_tokens: Literal["keep", "drop"] = "keep"
    """What happens to a call's token ids if something was removed from its texts, because the ids still spell it.
    ``keep``: they are stored and trained on; ``drop``: they are not stored, so the call is text only."""

    @property
    def loopback(self) -> bool:
        """Whether only programs on this machine can reach the daemon."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    @property
    def all_addresses(self) -> bool:
        """Whether the daemon listens on all of this machine's addresses; ``host`` is then no name to reach it by."""
        return self.host in _ON_THIS_MACHINE

    def url(self, port: int | None = None, *, name: str | None = None) -> str:
        """Return the daemon's URL.

        Args:
            port: the port that it listens on, if it picked one itself.
            name: the name by which other machines reach it; None for programs on this machine.
        """
        host = name or _ON_THIS_MACHINE.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"{'http' if self.tls_cert is None else 'https'}://{host}:{self.port if port is None else port}"

    @field_validator("redact")
    @classmethod
    def _rules_that_can_be_read(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        redactor(rules)
        return rules

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: str | None) -> str | None:
        if token is not None and token != NO_TOKEN and len(token) < SHORTEST_TOKEN:
            raise ValueError(f"a token has {SHORTEST_TOKEN} characters or more; leave it out, and one is made")
        return None if token is None else sendable(token)

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ValueError(f"{missing} is missing: a certificate and its key go together (one file may hold both)")
        return self

    @model_validator(mode="after")
    def _token_beyond_loopback(self) -> Self:
        if not self.loopback and self.token == NO_TOKEN:
            raise ValueError(
                f"host {self.host!r} is reachable from other machines: a daemon without a token is for loopback alone"
            )
        return self
