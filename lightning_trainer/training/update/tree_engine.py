"""verl's FSDP engine over token trees: what samples share is computed once, forward and backward.

Invariant: log-probabilities, loss and gradients are those of the stock engine up to rounding, for any samples. A
micro-batch becomes the trie of its token sequences, packed into one row; the model runs once over the unique tokens
with attention along the tree, lm_head on the nodes whose next token is asked for; the results go back into the stock
engine's layout, so that verl's losses, metrics and worker stay as they are.

Registered under a vendor of its own: ``platform_cpu.select_engine(TREE)`` selects it. What it cannot
compute it refuses.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.utils import postprocess_batch_func

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.tree import attention
from lightning_trainer.training.tree.attention import TreePattern
from lightning_trainer.training.tree.logprobs import PairLogProbs
from lightning_trainer.training.tree.trie import Ints, build_trie, plan_micro_batches

TREE = "lightning-tree"
"""Vendor key in verl's engine registry."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which log-probabilities a micro-batch asks for, and where they go.

    Legend: ``S`` asked slots (one per trained token), ``P`` distinct (row, next token) pairs, ``R`` lm_head rows.
    """

    slots_S: torch.Tensor
    """Index into the packed samples: slot ``t`` holds the log-probability of the token after it."""
    row_of_S: torch.Tensor
    pair_of_S: torch.Tensor
    row_of_P: torch.Tensor
    target_P: torch.Tensor
    pattern: TreePattern


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device=["cpu", "cuda"], vendor=TREE)
class TreeEngine(FSDPEngineWithLMHead):
    """Causal language models with full attention."""

    tokens_computed: int = 0
    """Nodes that went through the model in the last batch."""

    def _build_module(self) -> torch.nn.Module:
        self._refuse_unsupported()
        attention.register()
        module = super()._build_module()
        if not module._supports_attention_backend:
            _refuse(f"{type(module).__name__} has an attention of its own")
        module.config._attn_implementation = attention.ATTENTION
        self._layers = module.config.num_hidden_layers
        return module

    def _refuse_unsupported(self) -> None:
        config = self.model_config.hf_config
        for name in vars(config):
            value = getattr(config, name)
            if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, int | float) and value > 0:
                _refuse(f"dropout ({name} = {value})")
        kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        if kinds:
            _refuse(f"layers of type {', '.join(sorted(kinds))}")
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            _refuse(f"sliding-window attention (sliding_window = {config.sliding_window})")
        if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
            _refuse("mixtures of experts (their balancing loss counts every token, not unique ones)")
        if any(hasattr(config, name) for name in ("vision_config", "audio_config", "text_config")):
            _refuse("multimodal models")
        if self.model_config.model_type != "language_model":
            _refuse("value heads")
        if self.model_config.use_fused_kernels or self.model_config.use_liger:
            _refuse("fused kernels")
        if self.use_ulysses_sp:
            _refuse("Ulysses sequence parallelism")

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        """As the stock engine's, but micro-batches are runs of the sorted samples under a budget of unique tokens."""
        group = self.get_data_parallel_group()
        loss_tokens = data["loss_mask"].sum().to(get_device_id())
        dist.all_reduce(loss_tokens, group=group)
        tu.assign_non_tensor(
            data,
            sp_size=1,
            use_dynamic_bsz=True,
            batch_num_tokens=loss_tokens.item(),
            dp_size=self.get_data_parallel_size(),
        )
        keep_outputs = tu.get_non_tensor_data(data, "return_model_output", False)
        indices = plan_micro_batches(_computed_sequences(data), data["max_token_len_per_gpu"])
        if dist.get_world_size(group) > 1:
            _refuse("more than one process")
        self.tokens_computed = 0
        outputs = []
        for number, chosen in enumerate(indices, 1):
            micro_batch = tu.index_select_tensor_dict(data, chosen)
            synchronized = self._gradient_sync_context(is_last_micro_batch=number == len(indices))
            with torch.no_grad() if forward_only else nullcontext(), nullcontext() if forward_only else synchronized:
                loss, output = self.forward_step(micro_batch, loss_function, forward_only)
                if not forward_only:
                    loss.backward()
                    if not keep_outputs:
                        output.pop("model_output", None)
            outputs.append(output)
        return postprocess_batch_func(output_lst=outputs, indices=indices, data=data)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], _Wanted]:
        for key in ("use_fused_kernels", "distillation_use_topk", "calculate_sum_pi_squared"):
            if tu.get_non_tensor_data(micro_batch, key, False):
                _refuse(key)
        device = micro_batch["input_ids"].device
        trie = build_trie(_computed_sequences(micro_batch))
        self.tokens_computed += len(trie)
        pattern = TreePattern(_tensor(trie.end_N, device))

        offsets = micro_batch["input_ids"].offsets().cpu().numpy()
        ids = micro_batch["input_ids"].values().cpu().numpy()
        asked = [_asked_slots(micro_batch, index) for index in range(len(trie.paths))]
        slots = np.concatenate([offset + slot for offset, slot in zip(offsets[:-1], asked, strict=True)])
        nodes = np.concatenate([path[slot] for path, slot in zip(trie.paths, asked, strict=True)])
        # A node that several samples continue is one row of lm_head; samples that agree on the next token are one pair.
        rows, row_of_slot = np.unique(nodes, return_inverse=True)
        pairs, pair_of_slot = np.unique(np.stack([row_of_slot, ids[slots + 1]]), axis=1, return_inverse=True)
        inputs = {
            "input_ids": _tensor(trie.tokens_N, device)[None],
            "position_ids": _tensor(trie.depth_N, device)[None],
            "attention_mask": None,
            "logits_to_keep": _tensor(rows, device),
            "tree_pattern": pattern,
        }
        wanted = _Wanted(
            slots_S=_tensor(slots, device),
            row_of_S=_tensor(row_of_slot, device),
            pair_of_S=_tensor(pair_of_slot, device),
            row_of_P=_tensor(pairs[0], device),
            target_P=_tensor(pairs[1], device),
            pattern=pattern,
        )
        return inputs, wanted

    def prepare_model_outputs(
        self, output: Any, output_args: _Wanted, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        wanted = output_args
        if wanted.pattern.layers_seen != self._layers:
            _refuse(f"a model of which {wanted.pattern.layers_seen} of {self._layers} layers attend along the tree")
        temperature = tu.get_non_tensor_data(micro_batch, "temperature", 1.0)
        if isinstance(temperature, torch.Tensor):
            _refuse("a temperature per sample")
        logits_RV = output.logits[0]
        if temperature != 1.0:
            logits_RV = logits_RV / temperature
        offsets = micro_batch["input_ids"].offsets()

        def in_samples(values: torch.Tensor, index_S: torch.Tensor) -> torch.Tensor:
            packed = values.new_zeros(int(offsets[-1]))
            packed = packed.index_put((wanted.slots_S,), values.index_select(0, index_S))
            return torch.nested.nested_tensor_from_jagged(packed, offsets)

        logprobs_P = PairLogProbs.apply(logits_RV, wanted.row_of_P, wanted.target_P)
        outputs = {"log_probs": in_samples(logprobs_P, wanted.pair_of_S)}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            outputs["entropy"] = in_samples(self.compute_entropy_from_logits(logits_RV), wanted.row_of_S)
        return outputs


def _asked_slots(batch: TensorDict, index: int) -> Ints:
    """Positions of one sample whose next token is trained: what ``loss_mask`` marks, one earlier."""
    prompt = int(batch["prompts"].offsets()[index + 1] - batch["prompts"].offsets()[index])
    offsets = batch["loss_mask"].offsets()
    mask = batch["loss_mask"].values()[offsets[index] : offsets[index + 1]].cpu().numpy()
    return np.flatnonzero(mask) + prompt - 1


def _computed_sequences(batch: TensorDict) -> list[Ints]:
    """The tokens of each sample that must go through the model: up to the last position that is asked for."""
    ids, positions = batch["input_ids"], batch["position_ids"]
    offsets = ids.offsets().cpu().numpy()
    if positions.dim() != 2 or not np.array_equal(
        positions.values().cpu().numpy(), np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    ):
        _refuse("positions that do not count from 0")
    values = ids.values().cpu().numpy()
    sequences = []
    for index, start in enumerate(offsets[:-1]):
        asked = _asked_slots(batch, index)
        if not len(asked):
            raise TrainingError(f"sample {index} of the batch has no token to train; leave it out")
        sequences.append(values[start : start + asked[-1] + 1])
    return sequences


def _tensor(array: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _refuse(what: str) -> NoReturn:
    raise TrainingError(f'the tree engine does not support {what}; set attention = "stock" in [training]')
