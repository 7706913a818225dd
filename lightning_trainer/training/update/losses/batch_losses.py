"""verl's losses that average a micro-batch by itself, made means over the whole batch.

``geo_mean`` returns the mean over the sequences of a micro-batch, so that several of them would add up to a multiple of
the loss. Registered next to verl's own under a name of ours; nothing of verl's is replaced.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn, register_policy_loss

_PREFIX = "lightning_"


def over_the_batch(name: str) -> str:
    """Return the name under which the loss ``name`` is a mean over the batch however it is split."""
    ours = f"{_PREFIX}{name}"
    return ours if ours in POLICY_LOSS_REGISTRY else name


@register_policy_loss(f"{_PREFIX}geo_mean")
def _geo_mean(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    loss, metrics = get_policy_loss_fn("geo_mean")(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )
    batch = config.global_batch_info
    return loss * (len(advantages) * batch["dp_size"] / batch["global_batch_size"]), metrics
