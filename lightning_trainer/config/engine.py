"""``[engine]``, and ``engine`` of a policy: how vLLM is started."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lightning_trainer.config.hardware import Dtype, GpuName, each_once, fast_engine_dtype
from lightning_trainer.config.sections import Section, without_auto

_AUTO = "auto"
_ARGUMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_ELSEWHERE = {
    "model": "it is the policy's",
    "tokenizer": "save it in a model folder that the policy names: the daemon reads that too",
    "hf_overrides": "write it into the config.json of a model folder, which the trainer reads too",
    "hf_config_path": "put that config.json into a model folder, which the trainer reads too",
    "served_model_name": "it is the policy's name",
    "enable_lora": "[policy.lora] decides it",
    "max_lora_rank": "it follows from [policy.lora] rank",
    "max_loras": "it follows from the number of policies",
    "max_cpu_loras": "it follows from the number of policies",
    "lora_target_modules": "it follows from the model",
    "weight_transfer_config": "new weights come in by it",
    "generation_config": "sampling is what a request says",
    "override_generation_config": "sampling is what a request says",
    "lora_modules": "adapters come in as publications",
    "allowed_media_domains": "images are read as they were sent, and none is fetched",
    "allowed_local_media_path": "images are read as they were sent, and none from a disk",
    "mm_processor_kwargs": "write it into the preprocessor_config.json of a model folder, which the trainer reads too",
    "media_io_kwargs": "the trainer reads images as vLLM does without it",
    "trust_request_mm_kwargs": "the trainer prepares every image in the same way, whatever a request says",
    "config": "write its arguments in [engine.vllm] itself",
    "logits_processors": "the trainer cannot compute what they make of the logits",
    "default_chat_template_kwargs": "write it into a template of your own (chat_template), which the trainer reads too",
    "logprobs_mode": "training needs those of what was sampled from",
    "enable_sleep_mode": "set sleep in [engine]",
    "enable_auto_tool_choice": "set tool_call_parser in [engine]",
    "kv_cache_memory_bytes": "set kv_cache_gib, or gpu_memory_utilization, in [engine]",
    "host": "the engine listens on the loopback interface, or on its node's address in a cluster",
    "port": "the engine picks a free one",
    "api_key": "each start makes one of its own",
}
"""Arguments of vLLM that cannot be set in ``[engine.vllm]``, because they are set in another way or our promises depend
on them; with the reason for each."""


class EngineConfig(Section):
    """``[engine]``: the vLLM process, or several of them."""

    replicas: int = Field(default=1, ge=1, le=64)
    """Processes that serve the same policies, each with its own memory; a conversation stays with one."""
    placement: Literal["local", "cluster"] = "local"
    """On the daemon's machine, or on the nodes of the cluster at ``[ray] address``."""
    python: str | None = None
    """Interpreter of the engine process; absent: the daemon's own, or that of the node's Ray."""
    dtype: Annotated[Dtype, BeforeValidator(lambda value: fast_engine_dtype() if value == _AUTO else value)] = Field(
        default=_AUTO, validate_default=True
    )
    """``auto`` means bfloat16 on GPUs and on processors that have instructions for it, else float32."""
    max_model_len: int = Field(default=2048, ge=16)
    max_num_seqs: int = Field(default=64, ge=1)
    kv_cache_gib: float = Field(default=2.0, gt=0)
    """CPU only: memory for the key-value cache. Without a limit, vLLM would take all of the machine's."""
    threads: int | None = Field(default=None, ge=1)
    """CPU only: threads of each process; absent: its share of the cores."""
    gpus: tuple[GpuName, ...] | None = Field(default=None, min_length=1)
    """GPUs that engines may use, by number or UUID; None: assigned automatically (docs/scale.md)."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs across which each replica divides the model."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory; None: 0.9, divided if engines share a GPU (candidates of a guard or canary have an
    engine of their own), or 0.8 if a trainer shares it."""
    quantization: str | None = None
    """vLLM's name for the format that weights are quantized to (``fp8`` ...)."""
    sleep: bool | Literal["auto"] = _AUTO
    """Whether the engine gives its GPU memory to the trainer during an update; ``auto``: if they share a GPU."""
    sleep_level: Literal[1, 2] = 1
    """1 keeps the weights in the machine's memory meanwhile; 2 discards them and reads their file again afterwards."""
    vllm: Mapping[str, Any] = Field(default_factory=dict)
    """Further arguments of ``vllm serve`` by its own names (``max_num_batched_tokens = 8192``)."""
    chat_template: Path | None = None
    tool_call_parser: str | None = None
    """vLLM's name for the parser that turns text into tool calls (``hermes`` ...); None: no tools."""
    reasoning_parser: str | None = None
    """vLLM's name for the parser that separates reasoning from the answer (``qwen3`` ...); None: no separation."""
    keep_sampled_ids: bool = True
    """If a prompt repeats an earlier answer of its attempt word for word, use the ids that were sampled for that answer
    instead of those that the tokenizer makes of the words (docs/transitions.md)."""
    routed_experts: bool | Literal["auto"] = _AUTO
    """Whether a mixture of experts reports which experts each token went through, so that the trainer uses the same
    (docs/sampling.md). ``auto``: if the engine can; ``true``: refuse to start if it cannot."""
    on_new_weights: Literal["finish", "abort"] = "finish"
    """What happens to running generations when all weights change: they finish first, or are cut off. With adapters,
    each continues with the adapter that it began with."""
    finish_timeout_s: float | None = Field(default=None, gt=0)
    """How long ``finish`` waits before it cuts off running generations; absent: until all have ended."""
    startup_timeout_s: float = Field(default=600.0, gt=0)
    probe_max_abs: float | None = Field(default=None, gt=0)
    """Largest |trainer - engine| of a probe logprob, nats. Default: 1e-3 in float32, 1.0 in bfloat16."""
    probe_mean_abs: float | None = Field(default=None, gt=0)
    """Largest mean of the same differences. Default: 2e-4 in float32, 0.1 in bfloat16."""

    @model_validator(mode="before")
    @classmethod
    def _auto_is_the_default(cls, given: Any) -> Any:
        return without_auto(given, "dtype")

    @field_validator("on_new_weights", mode="before")
    @classmethod
    def _one_version_for_an_answer(cls, given: Any) -> Any:
        if given == "continue":
            raise ValueError(
                "vLLM 0.31 does not say which of two versions sampled a token of an answer that runs while weights "
                'change, and every token is trained with its own; write "finish" or "abort"'
            )
        return given

    @property
    def drain_timeout_s(self) -> float | None:
        """How long to wait for running generations when weights change; None: until they end."""
        return 0.0 if self.on_new_weights == "abort" else self.finish_timeout_s

    _gpus = field_validator("gpus")(each_once)

    @field_validator("vllm")
    @classmethod
    def _arguments(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        table = {name.replace("-", "_"): value for name, value in given.items()}
        for name in table:
            if not _ARGUMENT.fullmatch(name):
                raise ValueError(f"{name!r} cannot be an argument of vLLM; write its name as in max_num_batched_tokens")
            if (because := _ELSEWHERE.get(name.removeprefix("no_"))) is not None:
                raise ValueError(f"{name} is not set here: {because}")
            if name in cls.model_fields:
                raise ValueError(f"{name} is set in [engine] itself; move it there")
        return table

    @model_validator(mode="after")
    def _a_limit_for_what_has_none(self) -> Self:
        if self.on_new_weights == "abort" and self.finish_timeout_s is not None:
            raise ValueError(
                f'finish_timeout_s = {self.finish_timeout_s:g} is for on_new_weights = "finish", and "abort" waits for '
                "nothing; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _what_is_not_seen_from_here(self) -> Self:
        if self.placement == "cluster":
            if "dtype" not in self.model_fields_set:
                raise ValueError(
                    'placement = "cluster" puts engines on machines that are not seen from here; say dtype = '
                    '"bfloat16" or "float32"'
                )
            if self.gpus is not None:
                raise ValueError(
                    'gpus names GPUs of this machine, and with placement = "cluster" Ray assigns those of its nodes; '
                    "leave it out"
                )
        return self

    @model_validator(mode="after")
    def _gpus_for_each_replica(self) -> Self:
        if self.gpus is not None and len(set(self.gpus)) < self.tensor_parallel_size:
            raise ValueError(
                f"tensor_parallel_size = {self.tensor_parallel_size} needs as many GPUs and gpus names "
                f"{len(set(self.gpus))}; name more, or lower it"
            )
        return self


class OwnEngineConfig(Section):
    """``engine`` of a policy: settings that its model's family or its agents decide; absent: those of ``[engine]``."""

    max_model_len: int | None = Field(default=None, ge=16)
    chat_template: Path | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
