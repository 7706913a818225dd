"""How far the trainer's log-probabilities are from the engine's on the tokens that the engine sampled.

Measured inside of the loss, on what the update computes anyway. On fresh samples it is the two implementations'
difference; on stale ones the distance that the weights have moved since is in it too.
"""

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from lightning_trainer.training.update.batch.tensors import BEHAVIOR
from lightning_trainer.training.update.metrics import Loss


class MeasuresMismatch:
    """A loss of verl's that also reports ``mismatch/abs_mean`` and ``mismatch/abs_max``, nats a trained token."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        loss, metrics = self._loss(model_output=model_output, data=data, dp_group=dp_group)
        with torch.no_grad():
            trainer = no_padding_2_padding(model_output["log_probs"], data)
            padded = data.select("response_mask", BEHAVIOR).to_padded_tensor()
            mask = padded["response_mask"].bool()
            differences = (trainer - padded[BEHAVIOR]).abs()[mask]
        # Micro-batches hold different numbers of tokens: their sums over the batch's count add up to its mean.
        share = float(differences.sum()) * data["dp_size"] / data["batch_num_tokens"]
        metrics["mismatch/abs_mean"] = Metric(AggregationType.SUM, share)
        metrics["mismatch/abs_max"] = Metric(AggregationType.MAX, float(differences.max()) if len(differences) else 0.0)
        return loss, metrics
