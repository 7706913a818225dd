"""Factors of demonstrations and pairs by hand, and stages in one trainer: each by its own loss, rate and reference."""

import math

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig, DpoConfig
from lightning_trainer.config.policies.updates import LoraConfig, OptimizerConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import StageSettings
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl

LORA = LoraConfig(rank=4, alpha=8)


@pytest.fixture
def pair(sample):
    """An answer of two tokens against one of three, the longer one with a prompt inside."""
    return [
        sample("won", [1, 2, 3, 4], [0, 0, 1, 1], group="g", credit=1.0),
        sample("lost", [1, 2, 5, 6, 7, 8], [0, 0, 1, 0, 1, 1], group="g", credit=-1.0),
    ]


LOG_PROBS = {"won": [0.0, 0.0, -1.0, -2.0], "lost": [0.0, 0.0, -1.0, 9.0, -0.5, -0.5]}
REFERENCE = {"won": [0.0, 0.0, -1.5, -2.5], "lost": [0.0, 0.0, -2.0, 3.0, -2.0, -1.5]}
"""h(won) = 0.5 + 0.5 = 1, h(lost) = 1 + 1.5 + 1 = 3.5: the wrong one is preferred. Elsewhere nothing is read."""


def test_a_pair_by_hand(pair):
    """beta 0.2: margin 0.2 (1 - 3.5) = -0.5; loss log(1 + e^0.5) = 0.974077; slope 0.2 sigmoid(0.5) = 0.124492."""
    from lightning_trainer.training.update.losses import preference_estimate

    found, said = preference_estimate(pair, LOG_PROBS, REFERENCE, DpoConfig(beta=0.2))
    slope = 0.2 / (1 + math.exp(-0.5))
    assert slope == pytest.approx(0.124492, abs=1e-6)
    assert found.advantages["won"] == pytest.approx([0, 0, slope, slope])
    assert found.advantages["lost"] == pytest.approx([0, 0, -slope, 0, -slope, -slope])
    assert said == pytest.approx(
        {
            "dpo/loss": 0.974077,
            "dpo/accuracy": 0.0,
            "dpo/margin": -0.5,
            "dpo/reward_chosen": 0.2,
            "dpo/reward_rejected": 0.7,
        },
        abs=1e-6,
    )


def test_label_smoothing_by_hand(pair):
    """0.9 * 0.974077 + 0.1 * log(1 + e^-0.5) = 0.924077; the slope is 0.2 (sigmoid(0.5) - 0.1) = 0.104492."""
    from lightning_trainer.training.update.losses import preference_estimate

    found, said = preference_estimate(pair, LOG_PROBS, REFERENCE, DpoConfig(beta=0.2, label_smoothing=0.1))
    assert said["dpo/loss"] == pytest.approx(0.924077, abs=1e-6)
    assert found.advantages["won"][2] == pytest.approx(0.104492, abs=1e-6)


def test_means_instead_of_sums_by_hand(pair):
    """h(won) = 0.5, h(lost) = 3.5 / 3; margin 3 (0.5 - 1.166667) = -2; slopes 3 sigmoid(2) over 2 and over 3."""
    from lightning_trainer.training.update.losses import preference_estimate

    found, said = preference_estimate(pair, LOG_PROBS, REFERENCE, DpoConfig(beta=3.0, length_normalized=True))
    assert said["dpo/margin"] == pytest.approx(-2.0)
    assert found.advantages["won"][2] == pytest.approx(3 * 0.880797 / 2, abs=1e-5)
    assert found.advantages["lost"][4] == pytest.approx(-3 * 0.880797 / 3, abs=1e-5)


def test_a_pair_without_its_other_side_is_refused(pair):
    from lightning_trainer.training.update.losses import preference_estimate

    with pytest.raises(TrainingError, match="the preference pair g has no rejected answer"):
        preference_estimate(pair[:1], LOG_PROBS, REFERENCE, DpoConfig())


def _stage(first_step, preset, lr=1e-3, **changes):
    return StageSettings(first_step, "grpo", AlgorithmConfig(preset=preset, **changes), None, OptimizerConfig(lr=lr))


STAGES = (_stage(1, "sft", 3e-3), _stage(3, "dpo", 1e-3), _stage(5, "grpo", 2e-3))


@pytest.fixture
def trainer(settings):
    from lightning_trainer.training.trainer import Trainer

    return lambda **changes: Trainer(settings(**{"stages": STAGES, **changes}))


@pytest.fixture
def batch(samples_of_shape, pair):
    """Demonstrations, pairs or groups, as the stage of the step has them."""

    def make(step):
        shown = pair if step in (3, 4) else samples_of_shape(step, "masks with holes")
        return TrainingBatch("tiny", step, tuple(shown))

    return make


def _weights(host):
    from lightning_trainer.training.update.exporting import whole_values

    return {name: whole_values(value).clone() for name, value in host.module.state_dict().items()}


def _same(ours, theirs):
    return all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_every_stage_has_its_loss_its_rate_and_its_reference(trainer, batch):
    trained = trainer()
    start = _weights(trained._learner.reference)
    reports = {}
    for step in (1, 2, 3, 4, 5):
        before = _weights(trained._learner.policy)
        reports[step] = trained.step(batch(step)).metrics
        if step in (3, 5):
            assert _same(before, _weights(trained._learner.reference)), "what the stage before left"
    assert not _same(start, _weights(trained._learner.reference))
    assert [reports[step]["lr"] for step in (1, 3, 5)] == [3e-3, 1e-3, 2e-3]
    assert reports[2]["sft/loss"] == reports[2]["actor/pg_loss"]
    assert reports[3]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-5), "policy and reference are still one"
    assert reports[4]["dpo/loss"] < reports[3]["dpo/loss"]
    assert reports[5]["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert "mismatch/abs_mean" in reports[5]
    assert "mismatch/abs_mean" not in reports[2]


def test_an_adapter_is_compared_with_the_one_that_its_stage_began_with_and_no_second_model_is_loaded(trainer, batch):
    from lightning_trainer.training.update.host import ModelHost

    trained = trainer(lora=LORA)
    reports = {step: trained.step(batch(step)).metrics for step in (1, 2, 3, 4, 5)}
    assert reports[3]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-5), "policy and reference are still one"
    assert reports[4]["dpo/loss"] < reports[3]["dpo/loss"]
    assert reports[5]["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert not isinstance(trained._learner.reference, ModelHost)


@pytest.mark.parametrize(("saved", "lora"), [(2, None), (3, None), (4, None), (2, LORA), (4, LORA)])
def test_a_checkpoint_of_any_stage_goes_on_as_if_nothing_had_happened(saved, lora, trainer, batch, tmp_path):
    whole = trainer(lora=lora)
    for step in (1, 2, 3, 4, 5):
        whole.step(batch(step))
        if step == saved:
            whole.save(tmp_path / "checkpoint", step)
    wanted = _weights(whole._learner.policy)
    for again in (trainer(lora=lora), whole):  # after a crash, and after a rollback in the same life
        again.load(tmp_path / "checkpoint")
        for step in range(saved + 1, 6):
            again.step(batch(step))
        assert _same(wanted, _weights(again._learner.policy))


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_reference_that_a_later_stage_needs_too_late_is_refused(lora, trainer, batch, tmp_path):
    first = _stage(1, "sft", 3e-3)
    without = trainer(lora=lora, stages=(first, _stage(3, "dr_grpo")))
    for step in (1, 2, 3):
        without.step(TrainingBatch("tiny", step, batch(5).samples))
        without.save(tmp_path / str(step), step)
    needs = trainer(lora=lora, stages=(first, _stage(3, "grpo")))
    with pytest.raises(TrainingError, match=r"no reference of the stage that began with step 3: .* after step 3"):
        needs.load(tmp_path / "3")
    needs.load(tmp_path / "2")
    assert needs.step(TrainingBatch("tiny", 3, batch(5).samples)).metrics["kl_loss"] == pytest.approx(0.0, abs=1e-6)


def test_a_named_reference_stays_what_it_is(trainer, batch, tiny_models):
    trained = trainer(reference_dir=tiny_models("llama", rope_theta=20000.0))
    start = _weights(trained._learner.reference)
    for step in (1, 2, 3):
        trained.step(batch(step))
    assert _same(start, _weights(trained._learner.reference))


def test_a_reference_that_is_named_later_takes_the_place_of_the_one_in_the_checkpoint(
    trainer, batch, tiny_models, tmp_path
):
    followed = trainer()
    for step in (1, 2, 3):
        followed.step(batch(step))
    followed.save(tmp_path / "checkpoint", 3)
    named = trainer(reference_dir=tiny_models("llama", rope_theta=20000.0))
    start = _weights(named._learner.reference)
    named.load(tmp_path / "checkpoint")
    assert _same(start, _weights(named._learner.reference))


@pytest.mark.parametrize("attention", ["tree", "stock"])
def test_no_prompt_token_is_trained(attention, trainer, sample, tiny_models):
    """The gradient of a demonstration is that of its masked tokens: verl's own ``sft_loss`` mixes up packed masks."""
    import torch
    from transformers import AutoModelForCausalLM

    shown = [
        sample("a", [1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 0, 1], group="a", credit=1.0),
        sample("b", [1, 2, 9, 8], [0, 0, 0, 1], group="b", credit=1.0),
    ]
    trained = trainer(attention=attention)
    report = trained.step(TrainingBatch("tiny", 1, tuple(shown)))
    model = AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32)
    losses = []
    for one in shown:
        logprobs = model(torch.tensor([one.token_ids])).logits[0].log_softmax(-1)
        losses += [-logprobs[t - 1, one.token_ids[t]] for t in range(len(one.token_ids)) if one.loss_mask[t]]
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert report.metrics["sft/loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert report.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert report.tokens_trained == 3
