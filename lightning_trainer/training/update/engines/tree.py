"""verl's FSDP engine over token trees: what samples share is computed once, forward and backward.

Invariant: log-probabilities, loss, and gradients are those of the stock engine up to rounding, for any samples. A
micro-batch becomes the trie of its token sequences, packed into one row. The model runs once over the unique tokens,
with attention along the tree, and lm_head only where a next token is asked for. The results are put back into the stock
engine's layout, so that verl's losses, metrics, and worker stay as they are.

It is registered under its own vendor, for the CPU and for GPUs (``registration``), and refuses what it cannot do.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType
from verl.utils.torch_functional import calculate_sum_pi_squared_from_logits
from verl.workers.engine import EngineRegistry
from verl.workers.engine.utils import postprocess_batch_func

from lightning_trainer.training.tree import attention
from lightning_trainer.training.tree.attention import TreePattern
from lightning_trainer.training.tree.drawn import DrawnRows
from lightning_trainer.training.tree.expert_replay import ExpertReplay
from lightning_trainer.training.tree.logprobs import DrawnEntropy, DrawnLogProbs, PairLogProbs, drawn_sum_pi_squared
from lightning_trainer.training.tree.trie import TokenTrie, build_trie, plan_micro_batches
from lightning_trainer.training.update.batch.packed import PackedSamples, filler, temperatures
from lightning_trainer.training.update.batch.sampled_from import EXPERTS, EXPERTS_OF_TOKEN, slot_draws
from lightning_trainer.training.update.engines.frozen import FrozenModelEngine
from lightning_trainer.training.update.engines.registration import DEVICES, TREE
from lightning_trainer.training.update.engines.tree_limits import refuse, refuse_config, refuse_module


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which log-probabilities a micro-batch asks for, and where they go.

    Legend: ``S`` asked slots (one per trained token), ``P`` distinct (row, next token) pairs, ``R`` lm_head rows.
    """

    slots_S: torch.Tensor
    """Index into the packed samples: slot ``t`` holds the log-probability of the token after it."""
    row_of_S: torch.Tensor
    pair_of_S: torch.Tensor
    row_of_P: torch.Tensor
    target_P: torch.Tensor
    temperature_R: torch.Tensor
    pattern: TreePattern
    drawn: DrawnRows | None = None
    """What the rows were sampled from; None if it is the softmax of their logits at their temperature."""

    def in_samples(self, values_S: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Put one value per asked slot where it belongs in the packed samples, and 0 elsewhere."""
        packed = values_S.new_zeros(int(offsets[-1])).index_put((self.slots_S,), values_S)
        return torch.nested.nested_tensor_from_jagged(packed, offsets)


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device=DEVICES, vendor=TREE)
class TreeEngine(FrozenModelEngine):
    """The engine for causal language models with full attention."""

    tokens_computed: int = 0
    """Nodes that went through the model in the last batch."""
    experts: ExpertReplay | None = None

    def _build_module(self) -> torch.nn.Module:
        refuse_config(self.model_config)
        attention.register()
        module = super()._build_module()
        refuse_module(module, "logits_to_keep")
        module.config._attn_implementation = attention.ATTENTION
        return module

    def _build_fsdp_module(self, module: torch.nn.Module) -> Any:
        wrapped = super()._build_fsdp_module(module)
        # ``dtype`` is the products' precision (autocast), ``param_dtype`` the parameters': float32, so that norms,
        # residuals and the sums of gradients are not rounded.
        self._autocast_dtype = PrecisionType.to_dtype(self.engine_config.dtype)
        return wrapped

    def run_batch(self, data: Any, loss_function: Any, forward_only: bool) -> Any:
        """Run all micro-batches, which here are runs of the sorted samples under a budget of unique tokens."""
        group, processes = self.get_data_parallel_group(), self.get_data_parallel_size()
        tokens = data["loss_mask"].sum().to(get_device_id())
        dist.all_reduce(tokens, group=group)
        tu.assign_non_tensor(data, sp_size=1, dp_size=processes, use_dynamic_bsz=True, batch_num_tokens=tokens.item())
        keep_outputs = tu.get_non_tensor_data(data, "return_model_output", False)
        indices = plan_micro_batches(PackedSamples(data).computed(), data["max_token_len_per_gpu"])
        passes = torch.tensor(len(indices), device=tokens.device)
        dist.all_reduce(passes, op=dist.ReduceOp.MAX, group=group)  # all processes take part in each pass
        self.tokens_computed = 0
        outputs = []
        for number in range(int(passes)):
            own = number < len(indices)
            micro_batch = tu.index_select_tensor_dict(data, indices[number]) if own else filler(data)
            synchronized = self._gradient_sync_context(is_last_micro_batch=number == passes - 1)
            with torch.no_grad() if forward_only else nullcontext(), nullcontext() if forward_only else synchronized:
                loss, output = self.forward_step(micro_batch, loss_function, forward_only)
                if not forward_only:
                    loss.backward()
                if not own or not (forward_only or keep_outputs):
                    output.pop("model_output", None)
            outputs.append(output)
        return postprocess_batch_func(output_lst=outputs, indices=indices, data=data)

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], Wanted]:
        """Build the micro-batch's trie, and return the model's inputs and which of its outputs are wanted.

        Raises:
            TreeRefusedError: the batch asks for something that the tree engine cannot compute.
        """
        for key in ("use_fused_kernels", "distillation_use_topk"):
            if tu.get_non_tensor_data(micro_batch, key, False):
                refuse(key)
        samples = PackedSamples(micro_batch)
        trie = build_trie(samples.computed())
        self.tokens_computed += len(trie)
        device = micro_batch["input_ids"].device

        def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        pattern = TreePattern(tensor(trie.end_N))
        starts = samples.offsets[:-1]
        slots = np.concatenate([start + asked for start, asked in zip(starts, samples.asked, strict=True)])
        nodes = np.concatenate([path[asked] for path, asked in zip(trie.paths, samples.asked, strict=True)])
        # A node that several samples continue is one row of lm_head; samples that agree on the next token are one pair.
        # A node that is continued at two temperatures, or under two grammars, is a row for each.
        temperature_of_sample = temperatures(micro_batch, len(starts))
        temperature_of_slot = np.repeat(temperature_of_sample, [len(asked) for asked in samples.asked])
        sampled_from = [nodes.astype(np.float64), temperature_of_slot]
        if draws := slot_draws(micro_batch, samples):
            sampled_from.append(draws.kind_of_S.astype(np.float64))
        rows, first_slot, row_of_slot = np.unique(
            np.stack(sampled_from), axis=1, return_index=True, return_inverse=True
        )
        continuations = np.stack([row_of_slot, samples.ids[slots + 1]])
        pairs, pair_of_slot = np.unique(continuations, axis=1, return_inverse=True)
        self._replay_experts(micro_batch, samples, trie, device)
        inputs = {
            "input_ids": tensor(trie.tokens_N)[None],
            "position_ids": tensor(trie.depth_N)[None],
            "attention_mask": None,
            "logits_to_keep": tensor(rows[0].astype(np.int64)),
            "tree_pattern": pattern,
        }
        temperature_R = tensor(rows[1])
        wanted = Wanted(
            slots_S=tensor(slots),
            row_of_S=tensor(row_of_slot),
            pair_of_S=tensor(pair_of_slot),
            row_of_P=tensor(pairs[0]),
            target_P=tensor(pairs[1]),
            temperature_R=temperature_R,
            pattern=pattern,
            drawn=None
            if draws is None
            else DrawnRows(
                temperature_R,
                {row: draw for row, slot in enumerate(first_slot) if (draw := draws.draw_of_S[slot]) is not None},
            ),
        )
        return inputs, wanted

    def _replay_experts(self, micro_batch: Any, samples: PackedSamples, trie: TokenTrie, device: torch.device) -> None:
        """Make each node take the experts that were recorded for it.

        If samples that share a node differ, one that sampled a token there takes precedence over the others.
        """
        table: Any = tu.get_non_tensor_data(micro_batch, EXPERTS, None)
        if table is None:
            if self.experts is not None:
                self.experts.use(None)
            return
        self.experts = self.experts or ExpertReplay(self.module)
        of_token = micro_batch[EXPERTS_OF_TOKEN].values().cpu().numpy()
        row_N = np.zeros(len(trie), np.int64)
        numbers = [
            of_token[start : start + len(path)] for start, path in zip(samples.offsets[:-1], trie.paths, strict=True)
        ]
        for path, number in zip(trie.paths, numbers, strict=True):
            row_N[path[number > 0]] = number[number > 0]
        for path, number, asked in zip(trie.paths, numbers, samples.asked, strict=True):
            sampled = asked[number[asked] > 0]
            row_N[path[sampled]] = number[sampled]
        self.experts.use(*table.of(row_N, device))

    def refuse_unless_seen(self, pattern: TreePattern) -> None:
        """Refuse a model with layers that did not attend along the tree."""
        layers = self.module.config.num_hidden_layers
        if pattern.layers_seen != layers:
            refuse(f"a model of which {pattern.layers_seen} of {layers} layers attend along the tree")

    def prepare_model_outputs(
        self, output: Any, output_args: Wanted, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Return log-probabilities, and entropies and sums of squares if asked for, in the samples' layout."""
        wanted = output_args
        self.refuse_unless_seen(wanted.pattern)
        logits_RV, drawn = output.logits[0], wanted.drawn
        if drawn is None and bool((wanted.temperature_R != 1.0).any()):
            logits_RV = logits_RV / wanted.temperature_R.to(logits_RV.dtype)[:, None]
        offsets = micro_batch["input_ids"].offsets()

        def in_samples(values: torch.Tensor, index_S: torch.Tensor) -> torch.Tensor:
            return wanted.in_samples(values.index_select(0, index_S), offsets)

        pairs = (logits_RV, wanted.row_of_P, wanted.target_P)
        logprobs_P = PairLogProbs.apply(*pairs) if drawn is None else DrawnLogProbs.apply(*pairs, drawn)
        outputs = {"log_probs": in_samples(logprobs_P, wanted.pair_of_S)}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            plain = drawn is None
            entropy_R = self.compute_entropy_from_logits(logits_RV) if plain else DrawnEntropy.apply(logits_RV, drawn)
            outputs["entropy"] = in_samples(entropy_R, wanted.row_of_S)
        if tu.get_non_tensor_data(micro_batch, "calculate_sum_pi_squared", False):
            squares_R = (
                calculate_sum_pi_squared_from_logits(logits_RV)
                if drawn is None
                else drawn_sum_pi_squared(logits_RV, drawn)
            )
            outputs["sum_pi_squared"] = in_samples(squares_R, wanted.row_of_S)
        return outputs
