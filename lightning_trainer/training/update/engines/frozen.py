"""verl's FSDP engine, which computes with trained weights as they are served, and keeps one copy of frozen ones.

Invariant: below a LoRA adapter, results are bit for bit what they would be with float32 weights. Frozen weights that
the products would round in each pass are rounded once, when the model is loaded. In a single process, FSDP, which keeps
a second copy of every weight that it is given, is given only the adapter.

Memory of ``P`` frozen parameters in a single process: 2P bytes in bfloat16, 4P in float32. verl's is 8P, and 2P more
while autocast keeps rounded copies for the backward pass.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import apply_fsdp2
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.fsdp import transformer_impl

from lightning_trainer.training.update.rounding import rounded_weights

_VerlEngine: Any = transformer_impl.FSDPEngineWithLMHead  # its decorators hide the class from type checkers


class FrozenModelEngine(_VerlEngine):
    """verl's engine for causal language models, which computes with the weights that are served."""

    served_dtype: torch.dtype | None = None
    """What the weights are rounded to in each pass, as the engine that samples has them; None: no engine samples."""

    def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        """Run all micro-batches as verl does, but with rounded weights; the optimizer moves the unrounded ones."""
        served = self.served_dtype
        with nullcontext() if served is None else rounded_weights(self.module, served):
            return self.run_batch(data, loss_function, forward_only)

    def run_batch(self, data: Any, loss_function: Any, forward_only: bool) -> Any:
        """Run all micro-batches, with the weights as they are."""
        return super().forward_backward_batch(data, loss_function, forward_only)

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        adapted = super()._build_lora_module(module)
        computed = self._param_dtype()
        if computed == torch.float32:  # autocast rounds only the weights of linear layers
            _round(_of_linear_layers(adapted), PrecisionType.to_dtype(self.engine_config.dtype))
        else:
            _round(adapted.parameters(), computed)
        return adapted

    def _build_fsdp_module(self, module: torch.nn.Module) -> Any:
        frozen = {parameter for parameter in module.parameters() if not parameter.requires_grad}
        if not frozen or dist.get_world_size() > 1:
            return super()._build_fsdp_module(module)
        computed = self._param_dtype()
        sharding = {
            "mesh": self.device_mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=torch.float32),
            "reshard_after_forward": self.engine_config.reshard_after_forward,
            "ignored_params": frozen,
        }
        apply_fsdp2(module, sharding, self.engine_config)
        # verl's forward and optimizer step read these.
        self._autocast_dtype, self.scaler = computed, None
        return module.to(get_device_id())

    def _param_dtype(self) -> torch.dtype:
        """Return what FSDP computes with."""
        return PrecisionType.to_dtype(self.engine_config.mixed_precision["param_dtype"])


def _of_linear_layers(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters that only linear layers read; a tied embedding's also goes into the residual stream."""
    linear, others = set[int](), set[int]()
    for part in module.modules():
        readers = linear if isinstance(part, torch.nn.Linear) else others
        readers.update(id(parameter) for parameter in part.parameters(recurse=False))
    return (parameter for parameter in module.parameters() if id(parameter) in linear - others)


def _round(parameters: Iterable[torch.nn.Parameter], dtype: torch.dtype) -> None:
    for parameter in parameters:
        if not parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
