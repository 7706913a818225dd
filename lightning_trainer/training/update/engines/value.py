"""verl's FSDP engines with a head of one value per token instead of logits: stock, and along the token tree.

verl's own loader asks for flash attention, which not every machine has; this one loads the same class of transformers.
If the model folder has no such head, a new one is drawn from the trainer's seed.
"""

from typing import Any

import torch
from transformers import AutoModelForTokenClassification
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

from lightning_trainer.training.tree import attention
from lightning_trainer.training.update.engines import tree as tree_engine
from lightning_trainer.training.update.engines.registration import DEVICES, STOCK, TREE
from lightning_trainer.training.update.engines.tree import Wanted
from lightning_trainer.training.update.engines.tree_limits import refuse_config, refuse_module

_StockValueEngine: Any = transformer_impl.FSDPEngineWithValueHead  # its decorators hide the class from type checkers
_TreeEngine: Any = tree_engine.TreeEngine


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device=DEVICES, vendor=STOCK)
class ValueEngine(_StockValueEngine):
    """verl's value engine, except for how the model is loaded."""

    def _build_module(self) -> torch.nn.Module:
        return _load(self.model_config)


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device=DEVICES, vendor=TREE)
class TreeValueEngine(_TreeEngine):
    """The value engine that computes what samples share only once, forward and backward."""

    def _build_module(self) -> torch.nn.Module:
        refuse_config(self.model_config)
        attention.register()
        module = _load(self.model_config)
        refuse_module(module)
        module.config._attn_implementation = attention.ATTENTION
        return module

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], tuple[Wanted, torch.Tensor]]:
        """Return the tree engine's inputs without ``logits_to_keep``, which models with a value head do not take."""
        inputs, wanted = super().prepare_model_inputs(micro_batch)
        return inputs, (wanted, inputs.pop("logits_to_keep"))

    def prepare_model_outputs(
        self, output: Any, output_args: tuple[Wanted, torch.Tensor], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Return the values at the asked positions, in the samples' layout."""
        wanted, node_of_row = output_args
        self.refuse_unless_seen(wanted.pattern)
        values_S = output.logits[0, :, 0].float()[node_of_row[wanted.row_of_S]]
        return {"values": wanted.in_samples(values_S, micro_batch["input_ids"].offsets())}


def _load(model_config: Any) -> Any:
    config = model_config.hf_config
    config.num_labels, config.classifier_dropout = 1, 0.0
    module = AutoModelForTokenClassification.from_pretrained(
        model_config.local_path, dtype=torch.float32, config=config, attn_implementation="sdpa"
    )
    if model_config.enable_gradient_checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module
