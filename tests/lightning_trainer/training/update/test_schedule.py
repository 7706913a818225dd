"""Epochs of mini-batches: each loss is its own formula there, equal to a plain PyTorch loop of the same updates."""

import math
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.tree.mini_batches import cut, visits
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl

_LR, _SEED, _EPOCHS, _MINI_BATCHES = 3e-3, 5, 2, 4
_SETTINGS: dict[str, dict[str, Any]] = {
    "clip_cov": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.3, "clip_cov_ub": 3.0},
    "kl_cov": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.5},
    "dppo_tv": {"clip_ratio_low": 5e-3, "clip_ratio_high": 5e-3, "clip_ratio_c": 20.0},
    "dppo_kl": {"clip_ratio_low": 3e-3, "clip_ratio_high": 3e-3, "clip_ratio_c": 20.0},
    "geo_mean": {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3},
    "gspo": {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3},
    "dro": {"dro_beta": 0.3},
    "bypass_mode": {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.1},
}
"""At which a loss differs from its neighbors once the weights have moved a little."""
_NOISE = {"kl_cov": 1e-3}
"""Nats on the recorded logprobs: where the ratio is 1, |log r| has the slope that rounding gives it."""
_BATCHES = (3, 4, 6)
"""Seeds: the first one in which no token stands on an edge is compared."""
_NUDGE = 1e-4
_ITS_OWN_AT_ONE = ("clip_cov", "kl_cov")
"""Losses that differ from vanilla already where the ratio is 1: by the tokens that they leave out, or push."""


@pytest.fixture
def batch(sample, tiny_models):
    """Eight groups of three attempts as the model itself would have scored them: the ratio is 1 before the step."""
    return partial(_batch, sample, tiny_models())


def _batch(sample, folder: Path, noise: float = 0.0, seed: int = 3) -> TrainingBatch:
    model, source = _load(folder), random.Random(seed)
    common = [source.randrange(500) for _ in range(6)]
    samples = []
    for group in range(8):
        prompt = common + [source.randrange(500) for _ in range(4)]
        for member in range(3):
            first, second = ([source.randrange(500) for _ in range(source.randint(3, 7))] for _ in range(2))
            tool = [source.randrange(500) for _ in range(3)] if member else []
            ids = prompt + first + tool + second
            mask = [0] * len(prompt) + [1] * len(first) + [0] * len(tool) + [1] * len(second)
            own = [0.0, *_log_p(model, ids).tolist()]
            logprobs = [(value + source.gauss(0, noise)) * bit for value, bit in zip(own, mask, strict=True)]
            credit = source.random()
            samples.append(sample(f"g{group}a{member}", ids, mask, group=f"g{group}", credit=credit, logprobs=logprobs))
    # A row is an attempt, and here also a sample: its segments have one row id.
    return TrainingBatch("tiny", 1, tuple(_one_row(one) for one in samples))


def _one_row(sample):
    return replace(sample, segments=tuple(replace(segment, row_id=sample.sample_id) for segment in sample.segments))


@dataclass
class Trained:
    gradients: list[dict[str, Any]]
    """What each update gave the optimizer, clipped."""
    weights: dict[str, Any]


def _train(settings, batch, **algorithm) -> tuple[Trained, Any]:
    from lightning_trainer.training.trainer import Trainer

    fields = {"advantage": "grpo", "mini_batches": _MINI_BATCHES, "ppo_epochs": _EPOCHS, **algorithm}
    trainer: Any = Trainer(settings(lr=_LR, seed=_SEED, max_tokens_per_micro_batch=4096, **fields))
    gradients: list[dict[str, Any]] = []

    def keep(*_: Any) -> None:
        gradients.append({name: value.grad.full_tensor().clone() for name, value in trainer.module.named_parameters()})

    trainer._learner.policy.engine.optimizer.register_step_pre_hook(keep)
    report = trainer.step(batch)
    return Trained(gradients, {name: value.full_tensor() for name, value in trainer.module.named_parameters()}), report


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _log_p(model: Any, ids: Sequence[int]) -> Any:
    import torch

    everything = model(torch.tensor([list(ids)])).logits[0, :-1].log_softmax(-1)
    return everything.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def _plain(folder: Path, batch: TrainingBatch, advantages: dict, algorithm: AlgorithmConfig) -> Trained:
    """The same updates as PyTorch and transformers make them: one sequence after the other, AdamW, a clipped norm."""
    import torch

    model = _load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.99), weight_decay=0.0)
    parts = cut(batch.samples, algorithm.mini_batches)
    gradients = []
    for index in visits(len(parts), algorithm.ppo_epochs, seed=_SEED, step=batch.step):
        rows = []
        for sample in parts[index]:
            trained = torch.tensor(sample.loss_mask).nonzero()[:, 0]
            log_p = _log_p(model, sample.token_ids)[trained - 1]
            old = torch.tensor(sample.behavior_logprobs)[trained]
            rows.append((log_p, old, torch.tensor(advantages[sample.sample_id])[trained]))
        optimizer.zero_grad()
        _loss(rows, algorithm).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients.append({name: value.grad.clone() for name, value in model.named_parameters()})
        optimizer.step()
    return Trained(gradients, {name: value.detach() for name, value in model.named_parameters()})


def _loss(rows: list, algorithm: AlgorithmConfig) -> Any:
    """The policy losses as docs/training.md writes them; each the mean over sequences of the mean over tokens."""
    import torch

    name, low, high = algorithm.policy_loss, algorithm.clip_ratio_low, algorithm.clip_ratio_high
    log_p_of_all, advantage_of_all = (torch.cat([row[part].detach() for row in rows]) for part in (0, 2))

    def covariance(log_p, a):
        return (a - advantage_of_all.mean()) * (log_p.detach() - log_p_of_all.mean())

    most = torch.topk(
        covariance(log_p_of_all, advantage_of_all), max(1, int(len(log_p_of_all) * algorithm.kl_cov_ratio))
    ).values.min()

    def clipped(r, a):
        return torch.maximum(-a * r, -a * r.clamp(1 - low, 1 + high))

    def dual(r, a):
        return torch.where(a < 0, torch.minimum(clipped(r, a), -a * algorithm.clip_ratio_c), clipped(r, a))

    def dppo(log_p, old, a, distance):
        too_far = distance > torch.where(a > 0, high, low)
        stopped = too_far & torch.where(a > 0, log_p > old, log_p < old)
        r = (log_p - old).exp().clamp(max=algorithm.clip_ratio_c).detach()
        return torch.where(stopped, 0.0, -a * r * log_p)

    def of_tokens(log_p, old, a):
        r, q, p = (log_p - old).exp(), old.exp(), log_p.exp()
        if name == "vanilla":
            return dual(r, a)
        if name == "gspo":
            return clipped(((log_p - old).mean().detach() + log_p - log_p.detach()).exp(), a)
        if name == "cispo":
            return -r.clamp(1 - low, 1 + high).detach() * a * log_p
        if name == "gpg":
            return -a * log_p
        if name == "sapo":
            tau = torch.where(a > 0, algorithm.tau_pos, algorithm.tau_neg)
            return -a * 4 / tau * torch.sigmoid(tau * (r - 1))
        if name == "dro":
            assert algorithm.dro_beta is not None
            return -(a * log_p - algorithm.dro_beta / 2 * (log_p - old) ** 2)
        if name == "clip_cov":  # all candidates are left out
            c = covariance(log_p, a)
            left_out = (c > algorithm.clip_cov_lb) & (c < algorithm.clip_cov_ub) & (clipped(r, a) <= -a * r)
            return torch.where(left_out, 0.0, clipped(r, a))
        if name == "kl_cov":
            return -a * r + (covariance(log_p, a) >= most) * algorithm.ppo_kl_coef * (log_p - old).abs()
        if name == "bypass_mode":  # a rejected token has no loss, and is none of its sequence's
            bound = float(algorithm.rollout_rs_threshold or 0.0)
            kept = (1 / r.detach() <= bound) & (1 / r.detach() >= 1 / bound)
            return dual(r, a) * kept * len(kept) / kept.sum().clamp(min=1)
        if name == "dppo_tv":
            return dppo(log_p, old, a, (p - q).abs())
        return dppo(log_p, old, a, q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log())

    if name == "geo_mean":
        losses = []
        for log_p, old, a in rows:
            log_r, sign = log_p - old, a.sign()
            bounded = torch.minimum(sign * log_r, sign * log_r.clamp(-low, high))
            losses.append(-a.mean() * (sign * bounded).mean().exp())
        return torch.stack(losses).mean()
    return torch.stack([of_tokens(*row).mean() for row in rows]).mean()


def _apart(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The distance between two sets of tensors as a share of the second one's length."""
    off = math.sqrt(sum((ours[name] - theirs[name]).detach().square().sum().item() for name in ours))
    return off / math.sqrt(sum(value.detach().square().sum().item() for value in theirs.values()))


def _algorithm(loss: str) -> dict[str, Any]:
    mode = {} if loss in ("geo_mean", "sapo") else {"loss_agg_mode": "seq-mean-token-mean"}
    return {"policy_loss": loss, **mode, **_SETTINGS.get(loss, {})}


class _OnAnEdgeError(Exception):
    """A token stands so near to a kink of a loss that rounding decides, which every processor does in its own way."""


def _on_an_edge(folder: Path, batch: TrainingBatch, advantages: dict, algorithm: AlgorithmConfig) -> bool:
    """Whether plain PyTorch alone gives other gradients where the recorded logprobs differ by a ten-thousandth."""
    below, above = (
        _plain(folder, _nudged(batch, shift), advantages, algorithm).gradients for shift in (-_NUDGE, _NUDGE)
    )
    return max(map(_apart, below, above)) > 2e-3


def _nudged(batch: TrainingBatch, shift: float) -> TrainingBatch:
    def moved(sample):
        pairs = zip(sample.behavior_logprobs, sample.loss_mask, strict=True)
        return replace(sample, behavior_logprobs=tuple(value + shift * bit for value, bit in pairs))

    return replace(batch, samples=tuple(map(moved, batch.samples)))


def test_every_loss_is_its_formula_in_each_update_and_differs_from_all_others(tiny_models, settings, batch):
    for seed in _BATCHES:
        try:
            return _compare_all_losses(tiny_models(), settings, partial(batch, seed=seed))
        except _OnAnEdgeError as error:
            print(f"batch {seed}: {error}")
    pytest.fail(f"in each of the batches {_BATCHES} a token stands on an edge")


def _compare_all_losses(folder: Path, settings, batch) -> None:
    start = {name: value.detach() for name, value in _load(folder).named_parameters()}
    found: dict[str, Trained] = {}
    for loss in POLICY_LOSSES:
        chosen = _algorithm(loss)
        step = batch(_NOISE.get(loss, 0.0))
        ours, report = _train(settings, step, **chosen)
        algorithm = AlgorithmConfig(mini_batches=_MINI_BATCHES, ppo_epochs=_EPOCHS, **chosen)
        theirs = _plain(folder, step, report.advantages, algorithm)
        assert report.metrics["optimizer/updates"] == len(theirs.gradients) == _EPOCHS * _MINI_BATCHES
        for number, (mine, plain) in enumerate(zip(ours.gradients, theirs.gradients, strict=True)):
            if _apart(mine, plain) >= 2e-3 and _on_an_edge(folder, step, report.advantages, algorithm):
                raise _OnAnEdgeError(f"{loss}, update {number}")
            assert _apart(mine, plain) < 2e-3, f"{loss}, update {number}"
        moved, expected = ({name: one.weights[name] - start[name] for name in start} for one in (ours, theirs))
        assert _apart(moved, expected) < 5e-3, loss
        found[loss] = ours
    for loss, trained in found.items():
        print(loss, [round(_apart(g, found["vanilla"].gradients[i]), 4) for i, g in enumerate(trained.gradients)])
    for loss, trained in found.items():
        # As long as the ratio is 1 ...
        first = _apart(trained.gradients[0], found["vanilla"].gradients[0])
        assert (first > 1e-2) if loss in _ITS_OWN_AT_ONE else (first < 1e-3), loss
        for other in found:
            # ... and from then on.
            if other != loss:
                assert _apart(trained.gradients[-1], found[other].gradients[-1]) > 1e-2, f"{loss} and {other}"


@pytest.fixture
def trainer(settings):
    from lightning_trainer.training.trainer import Trainer

    return lambda **changes: Trainer(settings(**{"mini_batches": 2, "ppo_epochs": 2, **changes}))


def _weights(host) -> dict[str, Any]:
    from lightning_trainer.training.update.exporting import whole_values

    return {name: whole_values(value).clone() for name, value in host.module.state_dict().items()}


def _same(ours, theirs) -> bool:
    return all(bool((ours[name] == theirs[name]).all()) for name in ours)


def _at(step: int, batch: TrainingBatch) -> TrainingBatch:
    return replace(batch, step=step)


def test_what_a_step_reports_is_of_all_its_updates(trainer, batch):
    """Tokens are trained once and computed in every epoch; engine and trainer are compared before the first update."""
    once, often = trainer(mini_batches=1, ppo_epochs=1).step(batch()), trainer(mini_batches=4).step(batch())
    assert often.tokens_trained == once.tokens_trained
    assert often.tokens_sequential == 2 * once.tokens_sequential
    assert often.tokens_computed > 2 * once.tokens_computed  # what the mini-batches share is computed in each
    assert once.metrics["optimizer/updates"] == 1.0
    assert often.metrics["optimizer/updates"] == 8.0
    assert often.metrics["grad_norm/max"] > often.metrics["grad_norm"]
    assert often.metrics["mismatch/abs_max"] < 1e-4
    assert abs(often.metrics["actor/ppo_kl"]) > 1e-4
    assert often.metrics["actor/pg_clipfrac/unmoved"] == 0.0


def test_the_learning_rate_counts_steps_and_not_updates(trainer, batch):
    schedule = {"lr": 1e-3, "schedule": "cosine", "total_steps": 4}
    rates = [
        [one.step(_at(step, batch())).metrics["lr"] for step in (1, 2, 3)]
        for one in (trainer(**schedule), trainer(mini_batches=1, ppo_epochs=1, **schedule))
    ]
    assert rates[0] == pytest.approx(rates[1])
    assert rates[0][0] > rates[0][1] > rates[0][2]


def test_the_critic_takes_as_many_steps_as_the_policy(trainer, batch):
    trained = trainer(preset="ppo", mini_batches=4, ppo_epochs=3)
    steps: dict[str, int] = dict.fromkeys(("policy", "critic"), 0)
    for name in steps:

        def count(*_: Any, name=name) -> None:
            steps[name] += 1

        getattr(trained._learner, name).engine.optimizer.register_step_pre_hook(count)
    trained.step(batch())
    assert steps == {"policy": 12, "critic": 12}


def test_a_mini_batch_that_is_rejected_as_a_whole_is_no_update(trainer, batch):
    whole = batch()
    parts = cut(whole.samples, 2)
    far_off = {sample.sample_id for sample in parts[0]}
    samples = tuple(_as_if_improbable(one) if one.sample_id in far_off else one for one in whole.samples)
    report = trainer(rollout_rs="token_k1", rollout_rs_threshold=2.0).step(replace(whole, samples=samples))
    assert report.metrics["optimizer/updates"] == 2.0
    assert report.tokens_trained == sum(sum(sample.loss_mask) for sample in parts[1])


def _as_if_improbable(sample):
    logprobs = zip(sample.behavior_logprobs, sample.loss_mask, strict=True)
    return replace(sample, behavior_logprobs=tuple(value - 5.0 * bit for value, bit in logprobs))


@pytest.mark.parametrize("attention", ["tree", "stock"])
def test_against_the_trainer_no_rounding_is_clipped(attention, trainer, batch):
    """In bfloat16 too: what was measured before the step is measured again in its first updates, bit for bit."""
    at_rest = {"lr": 1e-30, "dtype": "bfloat16", "attention": attention, "max_tokens_per_micro_batch": 64}
    metrics = trainer(preset="gspo", mini_batches=4, **at_rest).step(batch()).metrics
    assert metrics["optimizer/updates"] == 8.0
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert metrics["actor/ppo_kl"] == 0.0
    against_engine = trainer(preset="gspo", mini_batches=4, old_logprobs="behaviour", **at_rest).step(batch()).metrics
    assert against_engine["actor/pg_clipfrac"] > 0.01


def test_demonstrations_are_learned_in_epochs_of_mini_batches(trainer, batch):
    report = trainer(preset="sft", mini_batches=4, ppo_epochs=3, lr=1e-3).step(batch())
    once = trainer(preset="sft", mini_batches=1, ppo_epochs=1, lr=1e-3)
    first = once.step(batch()).metrics["sft/loss"]
    assert report.metrics["optimizer/updates"] == 12.0
    assert report.metrics["sft/loss"] < first


def test_an_adapter_is_trained_in_mini_batches_and_the_model_below_it_rests(trainer, batch):
    trained = trainer(lora=LoraConfig(rank=4), mini_batches=4, kl_loss_coef=0.1)
    before = _weights(trained._learner.policy)
    assert trained.step(batch()).metrics["optimizer/updates"] == 8.0
    after = _weights(trained._learner.policy)
    moved = {name for name in after if not bool((after[name] == before[name]).all())}
    assert moved == {name for name in after if ".lora_" in name}


_KILLED = """
import os, pickle, signal, sys
from lightning_trainer.training.trainer import Trainer

with open(sys.argv[1], "rb") as file:
    settings, batches, folder = pickle.load(file)
trainer = Trainer(settings)
trainer.step(batches[0])
trainer.save(folder, 1)
policy, updates = trainer._learner.policy, []
update = policy.update

def fourth_is_too_late(*arguments, **options):
    updates.append(1)
    if len(updates) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(*arguments, **options)

policy.update = fourth_is_too_late
trainer.step(batches[1])
"""


def test_a_step_that_was_killed_between_mini_batches_is_repeated_to_the_same_weights(settings, batch, tmp_path):
    """Its weights had moved three times; a new process has those of the checkpoint, and the batch. The loss draws
    tokens at random, and there is a critic."""
    from lightning_trainer.training.trainer import Trainer

    drawn = {"policy_loss": "clip_cov", "clip_cov_ratio": 0.3, "clip_cov_lb": -10.0, "clip_cov_ub": 10.0}
    chosen = settings(preset="ppo", mini_batches=4, ppo_epochs=2, schedule="cosine", total_steps=3, **drawn)
    batches = [batch(), _at(2, batch())]
    (tmp_path / "given").write_bytes(pickle.dumps((chosen, batches, tmp_path / "step-1")))
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "given")], timeout=600, check=False)
    assert killed.returncode == -signal.SIGKILL
    whole, again = Trainer(chosen), Trainer(chosen)
    expected = [whole.step(one) for one in batches]
    assert again.load(tmp_path / "step-1") == 1
    assert again.step(batches[1]).metrics == expected[1].metrics
    for host in ("policy", "critic"):
        assert _same(*(_weights(getattr(one._learner, host)) for one in (whole, again)))


def test_a_step_that_failed_between_mini_batches_is_told_and_not_taken_for_done(trainer, batch, monkeypatch):
    trained = trainer(mini_batches=4)
    update, calls = trained._learner.policy.update, []

    def fails(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise TrainingError("out of memory")
        return update(*arguments, **options)

    monkeypatch.setattr(trained._learner.policy, "update", fails)
    with pytest.raises(TrainingError, match="out of memory"):
        trained.step(batch())
    assert trained.steps_done == 0


@pytest.mark.parametrize("policy_loss", sorted(POLICY_LOSSES))
def test_passes_that_only_keep_other_processes_company_change_nothing(settings, batch, monkeypatch, policy_loss):
    """Before: bypass_mode refused such a pass, and every step of several processes with it."""
    from lightning_trainer.training.update.engines import tree
    from lightning_trainer.training.update.learner import Learner

    def with_one_more(tensor, op=None, group=None):
        if op is tree.dist.ReduceOp.MAX:
            tensor += 1  # as if another process had one micro-batch more

    found = []
    for one_more in (False, True):
        if one_more:
            monkeypatch.setattr(tree.dist, "all_reduce", with_one_more)
        chosen = settings(policy_loss=policy_loss, lr=0.0, seed=_SEED, **_SETTINGS.get(policy_loss, {}))
        metrics = Learner(chosen).learn(batch().samples, step=1).metrics
        found.append([metrics[name] for name in ("loss", "grad_norm")])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
