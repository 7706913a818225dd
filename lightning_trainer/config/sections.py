"""The base of every section of ``lightning.toml``, units of time and size, and the small sections."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from lightning_trainer.errors import ConfigError


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are fixed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


SHORTEST_TOKEN = 16


def sendable(token: str) -> str:
    """Return a token, as a validator does. Raises ValueError: it cannot be sent in a header."""
    if not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError("a token is printable ASCII, without spaces around it: it is sent in a header")
    return token


VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The name of an environment variable."""


class TokenSection(Section):
    """Base of sections with a token: written in the file, or held by the environment."""

    token: str | None = None
    token_env: str | None = Field(default=None, pattern=VARIABLE)
    """The environment variable that holds the token, so that no file has to; not together with ``token``."""

    def given_token(self) -> str | None:
        """Return the token that was given; None if none was.

        Raises:
            ConfigError: the environment holds none, or none that can be used.
        """
        if (name := self.token_env) is None:
            return self.token
        held = os.environ.get(name, "")
        if not held:
            raise ConfigError(f"the environment has no {name}, which token_env names: set it where this runs")
        try:
            if len(held) < SHORTEST_TOKEN:
                raise ValueError(f"a token has {SHORTEST_TOKEN} characters or more")
            return sendable(held)
        except ValueError as error:
            raise ConfigError(f"{name}, which token_env names, holds no token that can be used: {error}") from None

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.token is not None and self.token_env is not None:
            raise ValueError("token and token_env are both set; leave one of them out")
        return self


def without_auto(given: Any, key: str) -> Any:
    """Return a section, before it is validated, without a key that is "auto", its default, so that this does not count
    as set by the user."""
    if isinstance(given, Mapping) and given.get(key) == "auto":
        return {name: value for name, value in given.items() if name != key}
    return given


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_BYTES = {
    "B": 1,
    **{name: 1000**power for power, name in enumerate(("KB", "MB", "GB", "TB"), start=1)},
    **{name: 1024**power for power, name in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}


def _measure(units: dict[str, int], example: str, *, none: bool = False):
    """Return a validator that reads a number with its unit; ``none``: whether "none" is allowed, and read as None."""
    pattern = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(sorted(units, key=len, reverse=True))})")
    or_none = ', or "none"' if none else ""

    def read(value: Any) -> Any:
        if none and value == "none":
            return None
        match = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f'write a number with its unit, like "{example}"{or_none}; there are {", ".join(units)}')
        return float(match[1]) * units[match[2]]

    return BeforeValidator(read)


def duration(example: str) -> BeforeValidator:
    """Return a validator that reads seconds from a text with a unit."""
    return _measure(_SECONDS, example)


Duration = Annotated[float | None, _measure(_SECONDS, "30d", none=True)]
"""Seconds."""
Size = Annotated[float | None, _measure(_BYTES, "20GiB", none=True)]
"""Bytes."""


class GatewayConfig(Section):
    """``[gateway]``: the bounds on model calls."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=2**16)
    """Largest body of a call; a larger one is answered 413."""
    max_concurrent: int = Field(default=512, ge=1)
    """Calls in flight; more are answered 429 with Retry-After."""
    queue_timeout_s: float = Field(default=180.0, gt=0)
    """How long a call is held while the engine starts or changes weights; then it is answered 503 with Retry-After."""
    silence_timeout_s: float = Field(default=600.0, gt=0)
    """How long the engine may send nothing; then the answer is 503, or an error that ends the stream."""
    drain_timeout_s: float = Field(default=30.0, ge=0)
    """How long a daemon that stops waits for calls in flight, while new ones are answered 503; 0 cuts them off."""
    embeddings: str | None = None
    """Base URL, with ``/v1``, of the server that embeddings are passed on to; absent: they are refused."""
    embeddings_key: str | None = Field(default=None, pattern=VARIABLE)
    """The environment variable that holds its API key."""

    @field_validator("embeddings")
    @classmethod
    def _a_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"embeddings is {url!r}; write a base URL, like https://api.openai.com/v1")
        return url

    @model_validator(mode="after")
    def _a_key_for_a_server(self) -> Self:
        if self.embeddings_key is not None and self.embeddings is None:
            raise ValueError(f"embeddings_key = {self.embeddings_key!r} has no server: set embeddings, or leave it out")
        return self


class EnvironmentsConfig(Section):
    """``[environments]``: limits of each environment's process; exceeding one fails the attempt, with a sentence."""

    folder: Path = Path(".venv-environments")
    """Where ``lightning-trainer environments install`` puts its interpreters."""
    start_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Time until its process has imported everything."""
    reset_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    step_timeout_s: float = Field(default=5.0, gt=0, le=3600)
    memory_mib: int = Field(default=2048, ge=64)
    """Memory of the process and everything it starts, together."""
    message_kib: int = Field(default=1024, ge=1, le=65536)
    """Size of one observation or action."""


_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


class RayConfig(Section):
    """``[ray]``: a cluster by its address, or else a Ray of the daemon's own on the loopback interface."""

    address: str | None = None
    """``HOST:PORT`` of the head of an existing cluster (what ``ray start --head`` prints); None: one of our own."""
    placement: Literal["spread", "pack"] = "pack"
    """Whether a trainer's processes are placed on as many nodes as possible, or on as few."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """How long a cluster may take to place the processes."""

    @field_validator("address")
    @classmethod
    def _an_address(cls, address: str | None) -> str | None:
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is not the address of a Ray cluster; write HOST:PORT, as in 10.0.0.4:6379")
        return address


Source = Annotated[str, Field(min_length=1, max_length=256)]


class FeedbackConfig(Section):
    """``[feedback]``: how long feedback waits, how much one source may give, and how much each source counts."""

    quarantine: Annotated[float, duration("10m")] = Field(default=600.0, ge=0, le=30 * 86400)
    """Seconds before feedback counts, so that someone can remove it, and others can disagree."""
    trusted: tuple[Source, ...] = ()
    """Sources, or patterns of them (``crm-*``), without quarantine or cap, which always weigh 1."""
    verified: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names of rewards from 0 to 1 that are known to be right, with which the sources' feedback is compared."""
    scores: Literal["attempt", "call"] = "attempt"
    """Whether feedback on a response scores the attempt that the response is part of, or that call alone."""
    min_weight: float = Field(default=0.5, gt=0, le=1000)
    """Least total weight of an answer's sources; below it the reward is missing. A source without a record weighs 1."""
    source_per_hour: int = Field(default=120, ge=1)
    """Feedback from one source beyond this number does not count."""
    all_per_hour: int = Field(default=20_000, ge=1)
    """Feedback from all sources together beyond this number does not count."""
    remember: Annotated[float, duration("90d")] = Field(default=90 * 86400.0, ge=3600)
    """Seconds for which feedback is kept as evidence about its source."""
    settle_every_s: float = Field(default=5.0, gt=0, le=3600)
    """How often waiting feedback is checked."""
