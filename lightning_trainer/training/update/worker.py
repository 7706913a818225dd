"""The policy: one model, its optimizer, and the policy loss.

A call of ``train`` is one optimizer step over a mini-batch, in as many micro-batches as the budget requires.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import ppo_loss

from lightning_trainer.errors import TrainingError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.adapter_weights import require_layers
from lightning_trainer.training.update.batch.tensors import TokenValues, scoring_tensors, training_tensors
from lightning_trainer.training.update.configuration import loss_config, worker_config
from lightning_trainer.training.update.exporting import as_in_checkpoints, exported_tensors, gathered_by_first
from lightning_trainer.training.update.host import ModelHost
from lightning_trainer.training.update.metrics import MeasuresMismatch, TokenWeighted, Update
from lightning_trainer.types import Sample, Segment

_log = logging.getLogger(__name__)


class UpdateWorker(ModelHost):
    """The weights of one policy and what changes them."""

    def __init__(self, settings: TrainerSettings, base: "UpdateWorker | None" = None) -> None:
        """Load the model.

        Args:
            base: a worker whose loaded model other policies use too (``shared_base``); nothing is loaded then.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
        """
        torch.set_num_threads(settings.threads_here)
        try:
            super().__init__(settings, base or worker_config(settings, settings.model_dir, lora=settings.lora))
        except ValueError as error:
            if settings.lora is None:
                raise
            raise TrainingError(f"{settings.model_dir} takes no such LoRA adapter: {error}") from error
        if settings.lora is not None:
            require_layers(self.module, settings.lora)
        if self.sharded:
            self.engine.served_dtype = getattr(torch, settings.serving_dtype)
        self.replays_experts = self.sharded and self._can_replay() if base is None else base.replays_experts
        self.begin(settings)

    def exported(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return all weights by the model folder's names, as ``gathered_by_first`` does."""
        if self.sharded:
            return as_in_checkpoints(self.module, exported_tensors(self.module, dtype))
        named, _ = self.engine.get_per_tensor_param()  # verl's own way, however the strategy divides them
        return gathered_by_first(((name, tensor.detach()) for name, tensor in named), dtype)

    def _can_replay(self) -> bool:
        """Whether the model's routers can be told their experts, as a trial with one token shows."""
        config: Any = self.module.config
        top_k = getattr(config, "num_experts_per_tok", None)
        if not top_k:
            return False
        experts = RoutedExperts(0, config.num_hidden_layers, top_k, 1, bytes(range(top_k)) * config.num_hidden_layers)
        segment = Segment(1, 2, "", 0, None, "", routed_experts=experts)
        sample = Sample("", "", "", "", "", (0, 0), (0, 1), (0.0, 0.0), (segment,))
        self.replays_experts = True
        try:
            self.measure([sample], "log_probs")
        except TrainingError as error:
            _log.warning("the trainer chooses experts by itself, whatever the engine took: %s", error)
            return False
        return True

    def begin(self, settings: TrainerSettings) -> None:
        """Train by these settings from now on: loss, entropy bonus, learning rate."""
        loss = TokenWeighted(partial(ppo_loss, config=loss_config(settings)))
        # Demonstrations and preferences were not sampled by the engine, or must not be compared with it.
        self._loss = MeasuresMismatch(loss) if settings.algorithm.objective == "rl" else loss
        self._with_entropy = settings.algorithm.entropy_coeff > 0
        self._lr = settings.optimizer.lr

    @property
    def vocabulary_size(self) -> int:
        """Return the size of the vocabulary according to the model's configuration."""
        return self.worker.model_config.hf_config.get_text_config().vocab_size

    def train(
        self,
        samples: Sequence[Sample],
        advantages: TokenValues,
        values: Mapping[str, TokenValues] | None = None,
        masks: Mapping[str, Sequence[int]] | None = None,
        *,
        last: bool = True,
    ) -> Update:
        """Take one optimizer step.

        Args:
            samples: a mini-batch, over which the loss is a mean; each with at least one trained token.
            advantages: by sample id, one value per token.
            values: the loss's other inputs, by verl's names: ``ref_log_prob``, ``rollout_is_weights``,
                ``old_log_probs`` instead of the behavior logprobs.
            masks: by sample id, which of the trained tokens count; at least one per sample.
            last: whether it is the last of the step's updates.
        """
        tensors = training_tensors(
            samples,
            {"advantages": advantages, **(values or {})},
            masks,
            experts=self.replays_experts,
            images=self.images,
        )
        tu.assign_non_tensor(tensors, calculate_entropy=self._with_entropy)
        self._set_learning_rate()
        # verl reports the next step's rate.
        lr = {"lr": self.engine.lr_scheduler.get_last_lr()[0]} if self.sharded else {}
        update = self.update(tensors, [len(sample.token_ids) for sample in samples], last=last)
        return Update({**update.metrics, **lr}, update.tokens_computed)

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return what ``train`` would compute: per sample one value per token, nats, 0.0 where the loss mask is 0."""
        found = self.measure(samples, "log_probs")["log_probs"]
        return [found[sample.sample_id] for sample in samples]

    def score(self, sequences: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        """Return ``log p(token | before it)``, nats, for every token of each sequence (2 or more) except its first."""
        found = self.infer(scoring_tensors(sequences), max(map(len, sequences)), "log_probs")
        return tuple(tuple(row[:-1]) for row in found["log_probs"])
