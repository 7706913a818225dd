"""How weights get into vLLM's worker: from safetensors files, layer by layer.

A raw ``model.load_weights`` fails once vLLM has repacked its linear layers for the CPU; its layerwise reload undoes and
repeats that per layer. The file lies in shared memory, so "reading" it maps it. Source: vLLM's weight-transfer
interface (``vllm/distributed/weight_transfer/base.py``).
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)

logger = logging.getLogger(__name__)


@dataclass
class FileTransferInit(WeightTransferInitInfo):
    """Empty: there is nothing to agree on beforehand."""


@dataclass
class FileTransferUpdate(WeightTransferUpdateInfo):
    """The safetensors files of one version, by path."""

    paths: list[str] = field(default_factory=list)


class FileTransfer(WeightTransferEngine[FileTransferInit, FileTransferUpdate]):
    """Loads a whole model from safetensors files that every worker can read."""

    init_info_cls = FileTransferInit
    update_info_cls = FileTransferUpdate

    def init_transfer_engine(self, init_info: FileTransferInit) -> None:
        """Log the worker's device, and on the CPU have vLLM pack experts after each load."""
        logger.info("the worker computes on %s with %d threads", self.device, torch.get_num_threads())
        if self.device.type == "cpu":
            _pack_experts_again()

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        # The base class always synchronizes the accelerator, which raises if there is none.
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileTransferUpdate) -> None:
        """Load the files into the model's layers.

        Raises:
            RuntimeError: a layer got no weights, and would keep its old ones.
        """
        with torch.inference_mode():
            self.model.load_weights(_tensors(update_info.paths))  # pyright: ignore[reportCallIssue]
        if untouched := _untouched(self.model):
            raise RuntimeError(f"{len(untouched)} layers got no weights: {', '.join(untouched[:3])}")

    def finish_weight_update(self) -> None:
        """Process the loaded layers as after a start, and the tied output layer with them."""
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_output_layer(self.model)

    def shutdown(self) -> None:
        pass


def _untouched(model: torch.nn.Module) -> list[str]:
    """Return the layers that would keep their previous weights, which vLLM only warns about.

    Attention layers have only scales, which few models carry; a tied output layer is repacked below.
    """
    return [
        name
        for name, layer in model.named_modules()
        if (info := get_layerwise_info(layer)).can_load()
        and info.load_numel == 0
        and any(True for _ in layer.parameters(recurse=False))
        and not isinstance(layer, ParallelLMHead)
        and not is_deferred_attention_layer(layer)
    ]


def _pack_experts_again() -> None:
    """Have a reload pack a layer's experts as the first load did.

    On the CPU vLLM multiplies with packed experts, but skips the packing when a layer is loaded again: the loaded
    weights would be read in the wrong order.

    vLLM 0.31.0 (``UnquantizedFusedMoEMethod._setup_kernel``). Upstream: we know of no issue.
    """
    setup = UnquantizedFusedMoEMethod._setup_kernel
    if setup.__name__ == "setup_and_pack":
        return

    def setup_and_pack(self: Any, layer: Any, w13: torch.Tensor, w2: torch.Tensor) -> None:
        again = self.moe_kernel is not None
        setup(self, layer, w13, w2)
        if again:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    UnquantizedFusedMoEMethod._setup_kernel = setup_and_pack


def _repack_output_layer(model: torch.nn.Module) -> None:
    """Update an output layer that is tied to the embedding.

    On the CPU vLLM multiplies with a packed copy of the weights. The reload packs a layer again if the file names it,
    but a tied output layer is never named: without this it would keep the weights of the start (0.31.0).
    """
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def _tensors(paths: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in paths:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)
