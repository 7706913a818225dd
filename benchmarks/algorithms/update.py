"""A real update for every case, and how far it is from its references: loss, advantages, gradients of both models."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from benchmarks.algorithms import imitation, plain, samples
from benchmarks.algorithms.cases import Case
from benchmarks.algorithms.peers import Answer, PeerProcess
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.policies.updates import OptimizerConfig
from lightning_trainer.training.settings import TrainerSettings, one_thread
from lightning_trainer.training.update.learner import Learner
from lightning_trainer.types import Sample

HORIZON = 64
_SEVERAL_MICRO_BATCHES, _ONE_MICRO_BATCH = 96, 8192
"""Tokens: the whole batch has some 200 unique ones."""


@dataclasses.dataclass(slots=True)
class Comparison:
    kind: str
    name: str
    compared_with: str
    """A library with its version, or the paper's formula in plain PyTorch."""
    loss: float
    loss_difference: float | None
    """As a share of the other side's; the worst of policy term, whole loss, and value loss. None: not compared."""
    gradient: float
    """The largest entry of the other side's gradient, over all parameters."""
    gradient_difference: float
    """As a share of the largest."""
    advantage_difference: float | None
    """As a share of the largest advantage if that is above 1, otherwise absolute."""
    tokens_trained: int

    @property
    def largest(self) -> float:
        return max(self.loss_difference or 0.0, self.gradient_difference, self.advantage_difference or 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Ours:
    """What the trainer did with the samples."""

    metrics: Mapping[str, float]
    advantages: Mapping[str, torch.Tensor]
    """By sample id, of the trained tokens."""
    gradients: Mapping[str, torch.Tensor]
    value_gradients: Mapping[str, torch.Tensor]
    tokens_trained: int


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


def compare(
    case: Case, policy_dir: Path, reference_dir: Path, attention: str, peers: PeerProcess | None
) -> list[Comparison]:
    """Make the update once; compare it with the formula, and with another library if there is one."""
    model: Any = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32)
    batch = samples.batch(lambda sequences: plain.score(model, sequences), model.config.vocab_size, case.shape)
    batch = imitation.batch(batch, case.formula)
    learner = _learner(case, policy_dir, reference_dir, attention)
    critic = _copy_of_critic(learner, policy_dir)
    gradients, value_gradients = _kept(learner.policy), _kept(learner.critic)
    learned = learner.learn(batch, step=1)
    advantages = {
        sample.sample_id: torch.tensor(learned.advantages[sample.sample_id])[torch.tensor(sample.loss_mask).bool()]
        for sample in batch
    }
    ours = Ours(learned.metrics, advantages, gradients, value_gradients, learned.tokens_trained)

    def formula(**changed: Any) -> plain.Step:
        credit = case.value_formula
        return plain.step(policy_dir, reference_dir, critic, batch, case.formula, credit, HORIZON, **changed)

    found = [_against(case, ours, formula(), case.source)]
    if case.peer is None or peers is None:
        return found
    peer, name = case.peer, peers.name_of(case.peer)
    if peer.gives == "gae":
        return [*found, _against(case, ours, formula(gae=peers.gae), f"{name}, {case.source}")]
    answer = peers.train(peer, [_as_json(sample) for sample in batch])
    if peer.gives == "advantages":
        assert answer.advantages is not None
        return [*found, _against(case, ours, formula(given=answer.advantages), f"{name}, {case.source}")]
    loss = None if peer.gives == "advantages and gradient" else answer.loss
    return [*found, _against_library(case, ours, answer, name, loss)]


def _learner(case: Case, policy_dir: Path, reference_dir: Path, attention: str) -> Learner:
    loss = POLICY_LOSSES[case.algorithm.policy_loss]
    return Learner(
        TrainerSettings(
            policy="benchmark",
            model_dir=policy_dir,
            reference_dir=reference_dir,
            advantage="credit" if case.value_credit else case.algorithm.advantage,
            # One update: the loss alone, without its paper's schedule, which ``update/test_schedule.py`` tests.
            algorithm=case.algorithm.model_copy(update={"mini_batches": 1, "ppo_epochs": 1}),
            value_credit=case.value_credit,
            horizon=HORIZON,
            optimizer=OptimizerConfig(clip_grad=1e9),
            training=one_thread().model_copy(
                update={
                    "attention": attention,
                    "max_tokens_per_micro_batch": (
                        _ONE_MICRO_BATCH if loss.per_micro_batch else _SEVERAL_MICRO_BATCHES
                    ),
                }
            ),
        )
    )


def _against(case: Case, ours: Ours, expected: plain.Step, name: str) -> Comparison:
    differences = [
        _off(ours.metrics["actor/pg_loss"], expected.policy_loss),
        _off(ours.metrics["loss"], expected.loss),
    ]
    furthest = _furthest(ours.gradients, expected.gradients)
    if expected.value_loss is not None:
        assert expected.value_gradients is not None
        differences.append(ours.metrics["critic/vf_loss"] / expected.value_loss - 1)
        furthest = max(furthest, _furthest(ours.value_gradients, expected.value_gradients))
    return Comparison(
        case.kind,
        case.name,
        name,
        loss=expected.loss,
        loss_difference=max(map(abs, differences)),
        gradient=_largest(expected.gradients.values()),
        gradient_difference=furthest,
        advantage_difference=_advantages_off(ours, expected.advantages),
        tokens_trained=ours.tokens_trained,
    )


def _against_library(case: Case, ours: Ours, answer: Answer, name: str, loss: float | None) -> Comparison:
    return Comparison(
        case.kind,
        case.name,
        name,
        loss=answer.loss,
        loss_difference=None if loss is None else abs(_off(ours.metrics["loss"], loss)),
        gradient=_largest(answer.gradients.values()),
        gradient_difference=_furthest(ours.gradients, answer.gradients),
        advantage_difference=None
        if answer.advantages is None
        else _advantages_off(ours, {name: torch.tensor(value) for name, value in answer.advantages.items()}),
        tokens_trained=ours.tokens_trained,
    )


def _off(ours: float, theirs: float) -> float:
    """Return the difference as a share, or absolute if the loss is nearly 0.

    It is with a ratio of 1 and advantages that add up to 0.
    """
    return ours / theirs - 1 if abs(theirs) > 1e-6 else ours - theirs


def _advantages_off(ours: Ours, theirs: Mapping[str, torch.Tensor]) -> float:
    furthest = max(_largest([ours.advantages[name] - values]) for name, values in theirs.items())
    return furthest / max(1.0, _largest(theirs.values()))


def _largest(vectors: Iterable[torch.Tensor]) -> float:
    return max(vector.abs().max().item() for vector in vectors)


def _as_json(sample: Sample) -> dict[str, Any]:
    start = sample.loss_mask.index(1)
    return {
        "id": sample.sample_id,
        "group": sample.group_id,
        "prompt": list(sample.token_ids[:start]),
        "completion": list(sample.token_ids[start:]),
        "mask": list(sample.loss_mask[start:]),
        "behavior": list(sample.behavior_logprobs[start:]),
        "reward": sample.segments[-1].credit,
    }


def _kept(host: Any) -> dict[str, torch.Tensor]:
    """Return a dict that receives the gradients that the optimizer is given, when it steps."""
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
    return _largest(ours[name] - theirs[name] for name in ours) / _largest(theirs.values())
