"""The host's settings, passed as one line of JSON on standard input, so that no process list shows the token."""

import json
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lightning_trainer.errors import EngineError

if TYPE_CHECKING:  # that package has dependencies that the engine's interpreter may lack
    from lightning_trainer.config import EngineConfig


@dataclass(frozen=True, slots=True)
class HostSettings:
    """One engine: one policy, or the adapters of several, served from one model folder."""

    model: str
    """Folder with config, weights and tokenizer: version 0 of every policy."""
    policies: tuple[str, ...]
    """The model names in requests; more than one only if adapters are served."""
    token: str
    """Every request needs ``Authorization: Bearer <token>``; it is never empty."""
    weights_directory: str
    """The only folder from which publications are read."""
    scratch: str
    """This process's own folder; the parent removes it."""
    engine: "EngineConfig"
    """``[engine]`` as the daemon read it; in the host a plain namespace with the same names and values."""
    threads: int = 1
    """OpenMP threads of the worker, on the CPU only."""
    gpu_memory_utilization: float | None = None
    """Share of each GPU's memory; None: vLLM's default."""
    sleeps: bool = False
    """Whether it can release its GPU memory for a while."""
    drain_timeout_s: float | None = None
    """How long a publication of all weights waits for running requests before it aborts them; None: until they end."""
    host: str = "127.0.0.1"
    """The address that it listens on."""
    lora_rank: int | None = None
    """The largest rank of the published adapters; None: publications contain all weights."""

    def to_line(self) -> str:
        """Return the settings as one line of JSON, newline included."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({**own, "engine": self.engine.model_dump(mode="json")}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "HostSettings":
        """Read what ``to_line`` wrote.

        Raises:
            EngineError: the line is something else, or has no token.
        """
        try:
            document = json.loads(line)
            read = {"policies": tuple(document["policies"]), "engine": SimpleNamespace(**document["engine"])}
            settings = cls(**{**document, **read})
        except (ValueError, TypeError, KeyError) as error:
            raise EngineError(f"the engine host expects its settings as JSON on standard input: {error}") from error
        if not settings.token:
            raise EngineError(f"the engine is to listen on {settings.host} without a token; give it one")
        return settings
