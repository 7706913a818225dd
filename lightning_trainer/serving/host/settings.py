"""What the parent tells the host, as one line of JSON on its standard input: the token is in no process list."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from lightning_trainer.errors import EngineError


@dataclass(frozen=True, slots=True)
class HostSettings:
    """One engine: one policy, or the adapters of several, served from one model folder."""

    model: str
    """Folder with config, weights and tokenizer: version 0 of every policy."""
    policies: tuple[str, ...]
    """The names that requests give as their model; more than one only where adapters are served."""
    token: str
    """Every request needs ``Authorization: Bearer <token>``."""
    weights_directory: str
    """Publications are read from here and nowhere else."""
    scratch: str
    """Folder of this process, removed by the parent."""
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    max_num_seqs: int = 64
    kv_cache_bytes: int = 2 * 2**30
    """CPU only."""
    threads: int | None = None
    """OpenMP threads of the worker; all cores that the process may use when None. CPU only."""
    chat_template: str | None = None
    tool_call_parser: str | None = None
    keep_sampled_ids: bool = True
    """Whether prompts that repeat an answer get the ids that were sampled for it."""
    routed_experts: bool | Literal["auto"] = "auto"
    """Whether a mixture of experts tells which ones each token went through; "auto" is where it can."""
    drain_timeout_s: float = 60.0
    """How long a publication of all weights waits for running requests before it aborts them."""
    lora_rank: int | None = None
    """The largest rank of the adapters that are published; None: publications hold all weights."""
    vllm_arguments: tuple[str, ...] = ()
    """More arguments for ``vllm serve``; the last one wins."""

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "HostSettings":
        """Read what ``to_line`` wrote.

        Raises:
            EngineError: it is not that.
        """
        try:
            document = json.loads(line)
            lists = {name: tuple(document[name]) for name in ("policies", "vllm_arguments")}
            return cls(**{**document, **lists})
        except (ValueError, TypeError, KeyError) as error:
            raise EngineError(f"the engine host expects its settings as JSON on standard input: {error}") from error
