"""verl's own FSDP engine, with the log-probabilities of what each token was sampled from.

verl divides the logits by the temperature and supports nothing else. If a batch says that tokens were sampled from
something else (``sampled_from``), their values are computed from the same logits by the tree engine's functions and
replace verl's.
"""

from typing import Any

import numpy as np
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.engine import EngineRegistry

from lightning_trainer.training.tree.drawn import DrawnRows
from lightning_trainer.training.tree.expert_replay import ExpertReplay
from lightning_trainer.training.tree.logprobs import DrawnEntropy, DrawnLogProbs, drawn_sum_pi_squared
from lightning_trainer.training.update.batch.packed import PackedSamples, temperatures
from lightning_trainer.training.update.batch.sampled_from import EXPERTS, EXPERTS_OF_TOKEN, SEGMENTS, slot_draws
from lightning_trainer.training.update.engines.frozen import FrozenModelEngine
from lightning_trainer.training.update.engines.registration import DEVICES, STOCK


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device=DEVICES, vendor=STOCK)
class StockEngine(FrozenModelEngine):
    """verl's engine for causal language models of any kind."""

    experts: ExpertReplay | None = None

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return verl's inputs; if the batch has recorded experts, make the model's routers take them."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        table: Any = tu.get_non_tensor_data(micro_batch, EXPERTS, None)
        if table is not None:
            self.experts = self.experts or ExpertReplay(self.module)
            shape: tuple[int, int] = inputs["input_ids"].shape  # samples, tokens of the longest; or 1, all tokens
            of_token = micro_batch[EXPERTS_OF_TOKEN]
            if _is_packed(micro_batch):
                rows = of_token.values()
            else:
                rows = torch.nested.to_padded_tensor(of_token, padding=0, output_size=shape).reshape(-1)
            self.experts.use(*table.of(rows.cpu().numpy(), rows.device))
        elif self.experts is not None:
            self.experts.use(None)
        return inputs, output_args

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Return verl's outputs, with other values for tokens that were not drawn from the plain softmax."""
        outputs = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if tu.get_non_tensor_data(micro_batch, SEGMENTS, None) is None:
            return outputs
        samples = PackedSamples(micro_batch)
        draws = slot_draws(micro_batch, samples)
        if draws is None:
            return outputs
        place_D = np.array([place for place, draw in enumerate(draws.draw_of_S) if draw is not None])
        sample_D = np.repeat(np.arange(len(samples.asked)), [len(asked) for asked in samples.asked])[place_D]
        position_D = np.concatenate(samples.asked)[place_D]
        slot_D = samples.offsets[sample_D] + position_D
        logits: torch.Tensor = output.logits  # [samples, tokens, vocabulary], or packed: [1, all tokens, vocabulary]
        sample, position, slot, target = (
            torch.from_numpy(array).to(logits.device)
            for array in (sample_D, position_D, slot_D, samples.ids[slot_D + 1])
        )
        rows_DV = logits[0, slot] if _is_packed(micro_batch) else logits[sample, position]
        temperature = torch.from_numpy(temperatures(micro_batch, len(samples.asked))).float().to(rows_DV.device)
        drawn = DrawnRows(
            temperature[sample],
            {row: draw for row, place in enumerate(place_D) if (draw := draws.draw_of_S[place]) is not None},
        )

        def replaced(name: str, values_D: torch.Tensor) -> torch.Tensor:
            packed = outputs[name].values().index_put((slot,), values_D.to(outputs[name].dtype))
            return torch.nested.nested_tensor_from_jagged(packed, outputs[name].offsets())

        own = torch.arange(len(slot), device=logits.device)
        found = {"log_probs": replaced("log_probs", DrawnLogProbs.apply(rows_DV, own, target, drawn))}
        if "entropy" in outputs:
            found["entropy"] = replaced("entropy", DrawnEntropy.apply(rows_DV, drawn))
        if "sum_pi_squared" in outputs:
            found["sum_pi_squared"] = replaced("sum_pi_squared", drawn_sum_pi_squared(rows_DV, drawn))
        return {**outputs, **found}


def _is_packed(micro_batch: Any) -> bool:
    """Whether verl packs the samples into one row, as flash attention takes them; verl makes the same test."""
    return bool(tu.get_non_tensor_data(micro_batch, "use_remove_padding", True))
