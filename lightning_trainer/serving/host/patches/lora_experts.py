"""Mixtures of experts with adapters on CPUs: experts are computed by the kernel that knows of no adapters.

vLLM takes Triton's kernel for experts as soon as there may be adapters, and CPUs do not have it. No adapter of ours
changes experts (``weight_file.linear_layers``), so the kernel without does.

vLLM 0.31.0 (``select_unquantized_moe_backend``). Upstream: we know of no issue.
"""


def use_for_vllm() -> None:
    """Tell the choice of the kernel that there are no adapters."""
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

    check = FusedMoEConfig.__post_init__

    def without_adapters(self) -> None:
        self.is_lora_enabled = False
        check(self)

    FusedMoEConfig.__post_init__ = without_adapters
