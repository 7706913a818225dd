"""A real update for every case, and how far it is from the plain one: loss, advantages, gradients of both models."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from algorithms_parts import imitation, plain, samples
from algorithms_parts.cases import Case
from lightning_trainer.training.algorithms.losses import POLICY_LOSSES
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.learner import Learner

_HORIZON = 64
_SEVERAL_MICRO_BATCHES, _ONE_MICRO_BATCH = 96, 8192
"""Tokens: the whole batch has some 200 unique ones."""


@dataclasses.dataclass(slots=True)
class Comparison:
    kind: str
    name: str
    loss: float
    loss_difference: float
    """As a share of the plain one; the worst of policy term, whole loss and value loss."""
    gradient: float
    """The largest of the plain one, of all parameters."""
    gradient_difference: float
    """As a share of the largest."""
    advantage_difference: float
    tokens_trained: int

    @property
    def largest(self) -> float:
        return max(self.loss_difference, self.gradient_difference, self.advantage_difference)


def write_models(source: Path, folder: Path) -> tuple[Path, Path]:
    """Write a policy and a reference that differ, with distributions that differ from token to token."""
    torch.manual_seed(0)
    for name, noise in (("policy", 0.0), ("reference", 0.02)):
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(3.0)
            parameter.data.add_(noise * torch.randn_like(parameter))
        model.save_pretrained(folder / name)
    return folder / "policy", folder / "reference"


def compare(case: Case, policy_dir: Path, reference_dir: Path, attention: str) -> Comparison:
    model: Any = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32)
    batch = samples.batch(
        lambda sequences: plain.score(model, sequences),
        model.config.vocab_size,
        two_calls_are_rows=case.value_credit is not None,
    )
    batch = imitation.batch(batch, case.algorithm)
    loss = POLICY_LOSSES[case.algorithm.policy_loss]
    learner = Learner(
        TrainerSettings(
            policy="benchmark",
            model_dir=policy_dir,
            reference_dir=reference_dir,
            advantage="credit" if case.value_credit else case.algorithm.advantage,
            algorithm=case.algorithm,
            value_credit=case.value_credit,
            horizon=_HORIZON,
            clip_grad=1e9,
            attention=attention,  # pyright: ignore[reportArgumentType]
            max_tokens_per_micro_batch=_ONE_MICRO_BATCH if loss.per_micro_batch else _SEVERAL_MICRO_BATCHES,
        )
    )
    expected = plain.step(
        policy_dir,
        reference_dir,
        _copy_of_critic(learner, policy_dir),
        batch,
        case.algorithm,
        case.value_credit,
        _HORIZON,
    )
    gradients, value_gradients = _kept(learner.policy), _kept(learner.critic)
    learned = learner.learn(batch, step=1)
    differences = [
        _off(learned.metrics["actor/pg_loss"], expected.policy_loss),
        _off(learned.metrics["loss"], expected.loss),
    ]
    furthest = _furthest(gradients, expected.gradients)
    if learner.critic is not None:
        assert expected.value_gradients is not None
        assert expected.value_loss is not None
        differences.append(learned.metrics["critic/vf_loss"] / expected.value_loss - 1)
        furthest = max(furthest, _furthest(value_gradients, expected.value_gradients))
    return Comparison(
        kind=case.kind,
        name=case.name,
        loss=expected.loss,
        loss_difference=max(map(abs, differences)),
        gradient=max(gradient.abs().max().item() for gradient in expected.gradients.values()),
        gradient_difference=furthest,
        advantage_difference=max(
            (torch.tensor(learned.advantages[name])[_mask(batch, name)] - values).abs().max().item()
            for name, values in expected.advantages.items()
        ),
        tokens_trained=learned.tokens_trained,
    )


def _off(ours: float, theirs: float) -> float:
    """As a share; as it is where the loss is nothing, as with a ratio of 1 and advantages that add up to 0."""
    return ours / theirs - 1 if abs(theirs) > 1e-6 else ours - theirs


def _mask(batch: list, name: str) -> torch.Tensor:
    return torch.tensor(next(sample.loss_mask for sample in batch if sample.sample_id == name)).bool()


def _kept(host: Any) -> dict[str, torch.Tensor]:
    """Keep the gradients that the optimiser is given, at its own step."""
    kept: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        kept.update({name: parameter.grad.full_tensor().clone() for name, parameter in host.module.named_parameters()})

    if host is not None:
        host.engine.optimizer.register_step_pre_hook(keep)
    return kept


def _copy_of_critic(learner: Learner, folder: Path) -> Any:
    if learner.critic is None:
        return None
    config = AutoConfig.from_pretrained(folder, num_labels=1)
    config.classifier_dropout = 0.0
    critic = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    weights = {name: value.full_tensor().clone() for name, value in learner.critic.module.state_dict().items()}
    critic.load_state_dict(weights)
    return critic


def _furthest(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    if ours.keys() != theirs.keys():
        raise RuntimeError(f"parameters with a gradient on one side only: {sorted(ours.keys() ^ theirs.keys())}")
    furthest = max((ours[name] - theirs[name]).abs().max().item() for name in ours)
    return furthest / max(value.abs().max().item() for value in theirs.values())
