"""One step of learning: measurements, advantages, correction, and the updates of critic and policy.

Everything is measured once, on the whole batch and before any weight changes: log-probabilities of the policy and of
its reference, the critic's values, and what follows from them. Then first the critic and after it the policy take
``ppo_epochs`` times ``mini_batches`` optimizer steps (Schulman et al., PPO, arXiv 1707.06347, algorithm 1), each a mean
over its mini-batch. A model that the algorithm does not need is not loaded, and a pass that it does not need is not
run.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lightning_trainer.config.policies import estimators
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.checkpoint_folder import THE_WAY_ON
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.tree import mini_batches
from lightning_trainer.training.update import metrics as divergence
from lightning_trainer.training.update.batch.sampled_from import experts_recorded, require_drawable
from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.training.update.critic import Critic
from lightning_trainer.training.update.estimation.advantages import Estimate, estimate, require_estimator
from lightning_trainer.training.update.estimation.critic_schemes import value_estimate
from lightning_trainer.training.update.losses import Correction, correct, demonstration_estimate, preference_estimate
from lightning_trainer.training.update.metrics import Update, of_step
from lightning_trainer.training.update.reference import AdapterReference, Reference
from lightning_trainer.training.update.worker import UpdateWorker
from lightning_trainer.types import Sample

_CRITIC = "critic"
"""The critic's folder in a checkpoint."""
_ALWAYS_POSITIVE = "k3"
"""Estimator of a divergence whose values cannot cancel: r - 1 - log r (Schulman, Approximating KL Divergence, 2020)."""


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of one step of learning."""

    metrics: dict[str, float]
    advantages: dict[str, tuple[float, ...]]
    tokens_trained: int
    tokens_computed: int
    """Positions that went through the model in the policy's updates."""
    tokens_sequential: int
    """What that would be if samples shared nothing."""
    prepare_s: float
    """Seconds before the updates: measurements, advantages, and correction."""


class Learner:
    """The policy and, if the algorithm needs them, its frozen reference and its critic."""

    def __init__(self, settings: TrainerSettings, base: UpdateWorker | None = None) -> None:
        """Load the models.

        Args:
            base: a worker that has already loaded the model that the policy's adapter belongs to.

        Raises:
            TrainingError: a model or the settings cannot be trained with.
        """
        for stage in settings.of_stages:
            if stage.value_credit is None:
                require_estimator(stage.advantage)
        self._run = settings
        self._settings = settings.at_step(1)
        self._algorithm = self._settings.algorithm
        self.policy = UpdateWorker(self._settings, base)
        self.reference = _reference(settings, self.policy)
        self._with_critic = next((stage for stage in settings.of_stages if stage.needs_critic), None)
        self.critic = None if self._with_critic is None else Critic(self._with_critic)
        self._critic_moved = False
        """Whether the critic differs from the one at the start."""

    def learn(self, samples: Sequence[Sample], step: int, media: Mapping[str, bytes] | None = None) -> Learned:
        """Take one step over a batch.

        Args:
            media: the contents that the samples refer to, by address (``Media.uri``).

        Raises:
            TrainingError: the batch cannot give advantages, or a token is not one that could have been sampled.
        """
        began = time.perf_counter()
        self._begin(step)
        for host in (self.policy, self.reference, self.critic):
            if host is not None and host.images is not None:
                host.images.show(media or {})
        trained = [sample for sample in samples if any(sample.loss_mask)]
        require_drawable(trained)
        parts = mini_batches.cut(trained, self._algorithm.mini_batches)
        measured = self._measure(trained, parts)
        metrics: dict[str, float] = {}
        if (recorded := experts_recorded(trained)) is not None:
            metrics["experts/replayed"] = recorded if self.policy.replays_experts else 0.0
        correction = Correction(None, {sample.sample_id: sample.loss_mask for sample in trained}, {})
        if self._algorithm.corrects_rollouts:
            correction = correct(trained, measured["old_log_probs"], self._algorithm)
            metrics.update(correction.metrics)
        if correction.weights is not None:
            measured["rollout_is_weights"] = correction.weights
        found = self._estimate(trained, measured, metrics)
        prepared = time.perf_counter()
        if self._settings.needs_critic:
            metrics.update(self._update_critic(parts, measured["values"], found, step).metrics)
        kept = [[sample for sample in part if any(correction.masks[sample.sample_id])] for part in parts]
        update = self._update_policy([part for part in kept if part], found, measured, correction, step)
        return Learned(
            metrics={**metrics, **update.metrics, **self._named_loss(metrics, update.metrics)},
            advantages={
                sample.sample_id: tuple(found.advantages.get(sample.sample_id, [0.0] * len(sample.token_ids)))
                for sample in samples
            },
            tokens_trained=sum(sum(correction.masks[sample.sample_id]) for part in kept for sample in part),
            tokens_computed=update.tokens_computed,
            tokens_sequential=self._algorithm.ppo_epochs * sum(len(sample.token_ids) for sample in trained),
            prepare_s=prepared - began,
        )

    def save(self, folder: Path, step: int) -> None:
        """Write everything that a step changes."""
        self.policy.save(folder, step)
        if self.reference is not None:
            self.reference.save(folder, step)
        if self.critic is not None:
            self.critic.save(folder / _CRITIC, step)

    def load(self, folder: Path, step: int) -> None:
        """Read what ``save`` wrote after a step. Before the first step that trains it, the critic may be missing.

        Raises:
            TrainingError: it is damaged, of another model, or without a critic or reference that the settings ask for.
        """
        if self.critic is not None and self._with_critic is not None:
            if (folder / _CRITIC).is_dir():
                self.critic.load(folder / _CRITIC)
                self._critic_moved = True
            elif step >= self._with_critic.first_step:
                raise TrainingError(
                    f"the checkpoint {folder} holds no critic: it was written under other settings; go on with those, "
                    f"let the critic's be a [[policy.stage]] that begins after step {step}, or {THE_WAY_ON}"
                )
            elif self._critic_moved:
                self.critic, self._critic_moved = Critic(self._with_critic), False
        if self.reference is not None:
            self.reference.load(folder)
            stage = self._run.at_step(step + 1)
            began = stage.first_step <= step and not self.reference.is_of(stage.first_step)
            if began and stage.algorithm.needs_reference:
                raise TrainingError(
                    f"the checkpoint {folder} holds no reference of the stage that began with step {stage.first_step}: "
                    "it was written under other settings; go on with those, name a reference_model, let what needs a "
                    f"reference be a [[policy.stage]] that begins after step {step}, or {THE_WAY_ON}"
                )
        self.policy.load(folder)  # last: the random state is the policy's

    def _begin(self, step: int) -> None:
        """Switch to the stage that the step belongs to, whatever the stage of the last step."""
        # What a loss draws at random depends only on the step, not on what else this process has drawn.
        torch.manual_seed(random.Random(f"{self._run.training.seed} {step}").getrandbits(63))
        settings = self._run.at_step(step)
        if settings != self._settings:
            self._settings, self._algorithm = settings, settings.algorithm
            self.policy.begin(settings)
            if self.critic is not None and settings.needs_critic:
                self.critic.begin(settings)
        if self.reference is not None:
            self.reference.begin(settings.first_step, self.policy)

    def _measure(self, samples: Sequence[Sample], parts: Sequence[Sequence[Sample]]) -> dict[str, TokenValues]:
        measured: dict[str, TokenValues] = {}
        squares = ["sum_pi_squared"] if estimators.needs_distribution(self._settings.advantage) else []
        if squares or self._algorithm.recomputes_old_logprobs or self._algorithm.objective == "dpo":
            # By mini-batch: in bfloat16 a product's rounding depends on its batch, and a tight clip sees it.
            passed = _joined([self.policy.measure(part, "log_probs", *squares) for part in parts])
            measured.update(passed, old_log_probs=passed["log_probs"])
        if self.reference is not None and self._algorithm.needs_reference:
            measured["ref_log_prob"] = self.reference.measure(samples, "log_probs")["log_probs"]
        if self.critic is not None and self._settings.needs_critic:
            measured["values"] = self.critic.values(samples)
        return measured

    def _estimate(
        self, samples: Sequence[Sample], measured: Mapping[str, TokenValues], metrics: dict[str, float]
    ) -> Estimate:
        settings, penalties = self._settings, None
        if self._algorithm.objective == "sft":
            return demonstration_estimate(samples)
        if self._algorithm.objective == "dpo":
            found, said = preference_estimate(
                samples, measured["log_probs"], measured["ref_log_prob"], self._algorithm.dpo
            )
            metrics.update(said)
            return found
        if "ref_log_prob" in measured:
            behavior = {sample.sample_id: sample.behavior_logprobs for sample in samples}
            ours = measured.get("old_log_probs", behavior)
            # verl's kl_loss is summed as loss_agg_mode says, perhaps over a whole answer: this one is always per token.
            away = divergence.divergence(samples, ours, measured["ref_log_prob"], _ALWAYS_POSITIVE)
            metrics["reference/kl"] = divergence.mean(samples, away)
        if self._algorithm.kl_reward_coef:
            nats = divergence.divergence(samples, ours, measured["ref_log_prob"], self._algorithm.kl_reward_type)
            coefficient = self._algorithm.kl_reward_coef
            penalties = {sample_id: [coefficient * value for value in row] for sample_id, row in nats.items()}
            metrics.update({"kl_reward": divergence.mean(samples, nats), "kl_reward_coef": coefficient})
        if settings.value_credit is not None:
            return value_estimate(samples, measured["values"], penalties, settings.value_credit)
        return estimate(samples, settings.advantage, self._algorithm, measured=measured, penalties=penalties)

    def _named_loss(self, metrics: Mapping[str, float], updated: Mapping[str, float]) -> dict[str, float]:
        """Return what was minimized by its own name; of DPO's surrogate only the gradient counts, not the value."""
        if self._algorithm.objective == "sft" and "actor/pg_loss" in updated:
            return {"sft/loss": updated["actor/pg_loss"]}
        if self._algorithm.objective == "dpo":
            return {"loss": metrics["dpo/loss"], "actor/pg_loss": metrics["dpo/loss"]}
        return {}

    def _updates(self, parts: Sequence[Sequence[Sample]], step: int) -> list[tuple[Sequence[Sample], bool]]:
        """Return the mini-batch of each update, and whether it is the last."""
        order = mini_batches.visits(len(parts), self._algorithm.ppo_epochs, seed=self._run.training.seed, step=step)
        return [(parts[index], number == len(order)) for number, index in enumerate(order, start=1)]

    def _update_critic(
        self, parts: Sequence[Sequence[Sample]], values: TokenValues, found: Estimate, step: int
    ) -> Update:
        assert self.critic is not None
        self._critic_moved = True
        return of_step(
            [
                self.critic.train(part, values, found.returns, found.return_masks, last=last)
                for part, last in self._updates(parts, step)
            ]
        )

    def _update_policy(
        self,
        parts: Sequence[Sequence[Sample]],
        found: Estimate,
        measured: Mapping[str, TokenValues],
        correction: Correction,
        step: int,
    ) -> Update:
        done = step - self._settings.first_step
        if self._settings.needs_critic and done < self._algorithm.critic.warmup_steps:
            return Update({"actor/update_skipped": 1.0}, 0)  # the critic's values are not a guide yet
        if not parts:
            return Update({"actor/update_skipped": 1.0}, 0)  # all of it was rejected
        values: dict[str, TokenValues] = {}
        if self._algorithm.kl_loss_coef:
            values["ref_log_prob"] = measured["ref_log_prob"]
        if correction.weights is not None:
            values["rollout_is_weights"] = correction.weights
        if self._algorithm.recomputes_old_logprobs:
            values["old_log_probs"] = measured["old_log_probs"]
        updates = [
            self.policy.train(part, found.advantages, values, correction.masks, last=last)
            for part, last in self._updates(parts, step)
        ]
        whole = of_step(updates)
        return Update({**whole.metrics, "optimizer/updates": float(len(updates))}, whole.tokens_computed)


def _joined(passes: Sequence[Mapping[str, Mapping[str, list[float]]]]) -> dict[str, TokenValues]:
    """Return the values of all samples of several passes, by name."""
    return {name: {sample_id: row for one in passes for sample_id, row in one[name].items()} for name in passes[0]}


def _reference(settings: TrainerSettings, policy: UpdateWorker) -> Reference | AdapterReference | None:
    if not any(stage.algorithm.needs_reference for stage in settings.of_stages):
        return None
    if settings.lora is not None and settings.reference_dir is None:
        return AdapterReference(policy)
    reference = Reference(settings)
    _require_same_vocabulary(policy, reference)
    return reference


def _require_same_vocabulary(policy: UpdateWorker, reference: Reference) -> None:
    theirs = reference.engine.module.config.get_text_config().vocab_size
    if theirs != policy.vocabulary_size:
        raise TrainingError(
            f"the reference model {reference.folder} has {theirs} tokens and the policy {policy.vocabulary_size}; a "
            "reference shares the policy's tokenizer"
        )
