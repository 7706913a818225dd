"""``[engine]``: how vLLM is started."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from lightning_trainer.config.cores import Dtype, fast_engine_dtype
from lightning_trainer.config.section import Section

_AUTO = "auto"


class EngineConfig(Section):
    """``[engine]``: the vLLM process, or several of them."""

    replicas: int = Field(default=1, ge=1, le=64)
    """Processes that serve the same policies, each with its own memory; a conversation stays with one."""
    python: str | None = None
    """Interpreter of the engine process; the daemon's own when absent."""
    dtype: Annotated[Dtype, BeforeValidator(lambda value: fast_engine_dtype() if value == _AUTO else value)] = Field(
        default=_AUTO, validate_default=True
    )
    """``auto`` is read as bfloat16 on a GPU and on processors that have instructions for it, else as float32."""
    max_model_len: int = Field(default=2048, ge=16)
    max_num_seqs: int = Field(default=64, ge=1)
    kv_cache_gib: float = Field(default=2.0, gt=0)
    """CPU only: memory for the key-value cache. vLLM would take all of the machine's otherwise."""
    threads: int | None = Field(default=None, ge=1)
    """CPU only, of each process; their share of the cores when absent."""
    chat_template: Path | None = None
    tool_call_parser: str | None = None
    """vLLM's name of the parser that turns text into tool calls (``hermes`` ...); None: no tools."""
    keep_sampled_ids: bool = True
    """A prompt that repeats an earlier answer of its attempt word for word gets the ids that were sampled for it, not
    those that the tokenizer makes of the words (docs/transitions.md)."""
    routed_experts: bool | Literal["auto"] = _AUTO
    """A mixture of experts tells which experts each token went through, and the trainer takes the same
    (docs/sampling.md). ``auto`` is wherever the engine can; ``true`` refuses to start where it cannot."""
    startup_timeout_s: float = Field(default=600.0, gt=0)
    probe_max_abs: float | None = Field(default=None, gt=0)
    """Largest |trainer - engine| of a probe logprob, nats. Default: 1e-3 in float32, 1.0 in bfloat16."""
    probe_mean_abs: float | None = Field(default=None, gt=0)
    """Mean difference. Default: 2e-4 in float32, 0.1 in bfloat16."""
