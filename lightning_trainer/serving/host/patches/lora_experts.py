"""Mixtures of experts with adapters on CPUs: the kernel without support for adapters computes the experts.

vLLM chooses Triton's kernel for experts whenever adapters are enabled, and CPUs do not have it. Our adapters do not
change experts (``weight_file.linear_layers``), so the kernel without support for adapters is enough.

vLLM 0.31.0 (``select_unquantized_moe_backend``). Upstream: we know of no issue.
"""


def use_for_vllm() -> None:
    """Make vLLM choose the kernel as if there were no adapters."""
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

    check = FusedMoEConfig.__post_init__

    def without_adapters(self) -> None:
        self.is_lora_enabled = False
        check(self)

    FusedMoEConfig.__post_init__ = without_adapters
