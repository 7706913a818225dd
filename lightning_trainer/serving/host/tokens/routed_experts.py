"""In the engine's process: which experts each token went through, delivered with the response.

vLLM can do this (``--enable-return-routed-experts``). It has a capture in each MoE layer's router, a store of whole
blocks that lives as long as the prefix cache (so that the positions of a cached prompt have their experts too), and
``CompletionOutput.routed_experts``. But it connects them only to model runner V2, which needs Triton. Without Triton,
as on CPUs, this module makes model runner V1 use the same parts.

vLLM 0.31.0 (``VllmConfig._verify_aux_output_compatibility``). Upstream: we know of no issue.
"""

import logging
from typing import Any, Literal, TypeAlias

import numpy as np

from lightning_trainer.errors import EngineError

Wanted: TypeAlias = bool | Literal["auto"]

LIMIT_BYTES = 1 << 24
"""Limit on one response's experts: 43,000 tokens of 48 layers with 8 experts each. A longer one goes out without."""

_log = logging.getLogger(__name__)
_CONNECTOR = "lightning_routed_experts"


def enable(config: Any, wanted: Wanted) -> None:
    """Switch the recording on in a finished ``VllmConfig``, before the engine is made.

    Args:
        wanted: "auto" switches it on if the model has experts and vLLM can report them.

    Raises:
        EngineError: ``wanted`` is True, and this engine cannot report experts.
    """
    if wanted is False or config.aux_output_config.enabled:
        return
    if (refusal := _refusal(config)) is None:
        config.aux_output_config.enable_return_routed_experts = True
        _log.info("the engine tells which experts each token went through")
    elif wanted is True:
        raise EngineError(
            f"[engine] routed_experts = true: {refusal}; set it to false, or leave it out to have it where it can be"
        )
    elif config.model_config.is_moe:
        _log.warning("the engine does not tell which experts tokens went through: %s", refusal)


def _refusal(config: Any) -> str | None:
    if not config.model_config.is_moe:
        return f"the model {config.model_config.model} is not a mixture of experts"
    config.aux_output_config.enable_return_routed_experts = True
    try:
        config._verify_aux_output_compatibility()
    except ValueError as error:
        return f"vLLM refuses: {error}"
    finally:
        config.aux_output_config.enable_return_routed_experts = False
    return None


def use_for_vllm() -> None:
    """Make model runner V1 use vLLM's parts as V2 does."""
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if hasattr(GPUModelRunner, _CONNECTOR):
        return
    setattr(GPUModelRunner, _CONNECTOR, None)
    verify = VllmConfig._verify_aux_output_compatibility
    initialize, update, sample = (
        GPUModelRunner.initialize_kv_cache,
        GPUModelRunner._update_states,
        GPUModelRunner.sample_tokens,
    )

    def verify_for_v1(self) -> None:
        # vLLM checks for V2 first, and for everything else after that; without V2, its other checks are made here.
        if self.use_v2_model_runner or not self.aux_output_config.enabled:
            return verify(self)
        parallel = self.parallel_config
        if max(parallel.pipeline_parallel_size, parallel.tensor_parallel_size, parallel.data_parallel_size) > 1:
            raise ValueError("without model runner V2 an engine of several processes cannot tell its experts")
        if self.speculative_config is not None:
            raise ValueError("without model runner V2 speculative decoding does not go with telling experts")
        if not self.cache_config.enable_prefix_caching:
            raise ValueError("AuxOutput Connector requires prefix caching.")

    def initialize_kv_cache(self, kv_cache_config, is_profiling=False, *args, **kwargs):
        initialize(self, kv_cache_config, is_profiling, *args, **kwargs)
        if not is_profiling and self.vllm_config.aux_output_config.enabled:
            setattr(self, _CONNECTOR, _connector(self, kv_cache_config))

    def update_states(self, scheduler_output):
        correct = update(self, scheduler_output)
        if (connector := getattr(self, _CONNECTOR)) is not None:
            connector.begin_step(scheduler_output.aux_output_connector_metadata)
        return correct

    def sample_tokens(self, *args, **kwargs):
        connector, pending = getattr(self, _CONNECTOR), None
        if connector is not None and self.execute_model_state is not None:
            pending = connector.prepare_output(_Step(self))
        output = sample(self, *args, **kwargs)
        if pending is not None:
            sampled = ~self.discard_request_mask.np[: len(pending.request_ids)]
            pending.enqueue_cpu_copy(sampled.astype(np.int32), np.zeros(len(sampled), np.int32))
            told = pending.process_output()
            getattr(output, "_model_runner_output", output).aux_output_connector_output = told
        return output

    VllmConfig._verify_aux_output_compatibility = verify_for_v1
    GPUModelRunner.initialize_kv_cache = initialize_kv_cache
    GPUModelRunner._update_states = update_states
    GPUModelRunner.sample_tokens = sample_tokens  # pyright: ignore[reportAttributeAccessIssue]


def _connector(runner: Any, kv_cache_config: Any) -> Any:
    from vllm.distributed.aux_output_connector.worker import get_aux_output_connector

    return get_aux_output_connector(runner.model, runner.vllm_config, kv_cache_config)


class _Step:
    """The fields of V2's ``InputBatch`` that vLLM's connector reads, for the batch that model runner V1 just ran."""

    def __init__(self, runner: Any) -> None:
        requests = runner.input_batch.num_reqs
        self.req_ids = list(runner.input_batch.req_ids[:requests])
        self.query_start_loc_np = runner.query_start_loc.np[: requests + 1].copy()
        self.num_computed_tokens_np = runner.input_batch.num_computed_tokens_cpu[:requests].copy()
