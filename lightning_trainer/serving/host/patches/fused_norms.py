"""RMS norms on CPUs by vLLM's own fused kernel, instead of six operations of PyTorch.

vLLM has the kernel for CPUs, but offers it only to GPUs. Without it a pass of 70 rows of SmolLM2-135M spends a third of
its time in norms, most of that waking threads, once for each operation. The kernel rounds once, at the end, as the
trainer does. It is registered through vLLM's own extension point for operations (``vllm.ir``), and the platform chooses
it.

vLLM 0.31.0 (``vllm/kernels/vllm_c.py``: ``supported=GPGPU_DEVICE``). Upstream: we know of no issue.
"""

from typing import Any

import torch

PROVIDER = "lightning"
_LANES = 16
"""Numbers that the kernel processes at a time."""


def supports(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Whether the kernel can compute this norm: of whole rows, contiguous in memory, in the weight's own precision."""
    return (
        variance_size is None
        and weight is not None
        and weight.dtype == x.dtype
        and x.is_contiguous()
        and x.shape[-1] % _LANES == 0
    )


def supports_with_residual(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    """Whether the kernel can compute this norm of a sum."""
    return supports(x, weight, epsilon, variance_size) and x_residual.is_contiguous() and x_residual.dtype == x.dtype


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Return ``weight * x / sqrt(mean(x^2) + epsilon)`` of each row."""
    output = torch.empty_like(x)
    torch.ops._C.rms_norm(output, x, weight, epsilon)
    return output


def fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put the norm of the sum into ``x`` and the sum into ``x_residual``."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def use_for_vllm() -> None:
    """Register the two kernels with vLLM, ahead of its own, which compute what these do not support."""
    from vllm import ir
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.platforms import current_platform

    if PROVIDER in ir.ops.rms_norm.impls:
        return
    current_platform.import_kernels()
    ir.ops.rms_norm.register_impl(PROVIDER, supports_args=supports)(rms_norm)
    with_residual = ir.ops.fused_add_rms_norm.register_impl
    with_residual(PROVIDER, supports_args=supports_with_residual, inplace=True)(fused_add_rms_norm)
    first = [PROVIDER, "native"]

    def priority(platform: type, vllm_config: Any) -> IrOpPriorityConfig:
        return IrOpPriorityConfig.with_default(["native"], rms_norm=first, fused_add_rms_norm=list(first))

    own: Any = type(current_platform)
    own.get_default_ir_op_priority = classmethod(priority)
