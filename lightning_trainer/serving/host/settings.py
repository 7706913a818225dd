"""What the parent tells the host, as one line of JSON on its standard input: the token is in no process list."""

import json
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lightning_trainer.errors import EngineError

if TYPE_CHECKING:  # its package needs what the engine's interpreter may not have
    from lightning_trainer.config import EngineConfig


@dataclass(frozen=True, slots=True)
class HostSettings:
    """One engine: one policy, or the adapters of several, served from one model folder."""

    model: str
    """Folder with config, weights and tokenizer: version 0 of every policy."""
    policies: tuple[str, ...]
    """The names that requests give as their model; more than one only where adapters are served."""
    token: str
    """Every request needs ``Authorization: Bearer <token>``; it is never empty."""
    weights_directory: str
    """Publications are read from here and nowhere else."""
    scratch: str
    """Folder of this process, removed by the parent."""
    engine: "EngineConfig"
    """``[engine]`` as the daemon read it; here its values alone, under the same names."""
    threads: int | None = None
    """OpenMP threads of the worker; all cores that the process may use when None. CPU only."""
    gpu_memory_utilization: float | None = None
    """Share of the GPUs' memory; None: vLLM's own."""
    sleeps: bool = False
    """Whether its GPU memory can be given away for a while."""
    drain_timeout_s: float | None = None
    """How long a publication of all weights waits for running requests before it aborts them; None: to their end."""
    host: str = "127.0.0.1"
    """The address that it listens on."""
    lora_rank: int | None = None
    """The largest rank of the adapters that are published; None: publications hold all weights."""

    def to_line(self) -> str:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({**own, "engine": self.engine.model_dump(mode="json")}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "HostSettings":
        """Read what ``to_line`` wrote.

        Raises:
            EngineError: it is not that.
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
