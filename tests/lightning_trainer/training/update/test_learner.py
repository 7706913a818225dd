"""Critic, reference and corrections in real steps; that the numbers are the formulas' is shown in tests/benchmarks."""

import math

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig, CriticConfig
from lightning_trainer.config.policies.credit import GaeTurnsCredit
from lightning_trainer.config.policies.updates import OptimizerConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import StageSettings
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl

_OPTIMIZER = OptimizerConfig(lr=1e-3)


@pytest.fixture
def trainer(settings):
    from lightning_trainer.training.trainer import Trainer

    return lambda **changes: Trainer(settings(**changes))


@pytest.fixture
def batch(samples_of_shape):
    return lambda step: TrainingBatch("tiny", step, tuple(samples_of_shape(step, "masks with holes")))


def _weights(host):
    return {name: value.full_tensor().clone() for name, value in host.module.state_dict().items()}


def _same(ours, theirs):
    return all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_the_value_tree_gives_the_values_of_verls_engine(trainer, batch):
    critics = [trainer(preset="ppo", attention=attention)._learner.critic for attention in ("tree", "stock")]
    critics[0].module.load_state_dict(critics[1].module.state_dict())
    samples = batch(1).samples
    tree, stock = (critic.values(samples) for critic in critics)
    assert max(abs(value) for row in stock.values() for value in row) > 1e-3
    for name, row in stock.items():
        assert tree[name] == pytest.approx(row, abs=1e-5)


def test_the_critic_learns_what_it_is_told(trainer, batch):
    trained = trainer(advantage="gae", critic={"lr": 3e-3, "cliprange_value": 100.0})
    losses = []
    for step in range(1, 9):
        again = TrainingBatch("tiny", step, batch(1).samples)
        losses.append(trained.step(again).metrics["critic/vf_loss"])
    assert losses[-1] < losses[0] / 2


def test_a_checkpoint_holds_the_critic(trainer, batch, tmp_path):
    whole, broken = trainer(preset="ppo"), trainer(preset="ppo")
    for one in (whole, broken):
        one.step(batch(1))
    broken.save(tmp_path / "step-1", 1)
    again = trainer(preset="ppo")
    again.load(tmp_path / "step-1")
    reports = [one.step(batch(2)) for one in (whole, again)]
    assert reports[0].metrics == reports[1].metrics
    for host in ("policy", "critic"):
        assert _same(*(_weights(getattr(one._learner, host)) for one in (whole, again)))


def test_a_checkpoint_without_a_critic_is_not_gone_on_from_with_one(trainer, tmp_path):
    trainer().save(tmp_path / "step-1", 1)
    with pytest.raises(TrainingError, match=r"holds no critic.* begins after step 1, or .* export"):
        trainer(preset="ppo").load(tmp_path / "step-1")


def test_a_stage_with_a_critic_goes_on_from_checkpoints_of_before_it(trainer, batch, tmp_path):
    """As if the stage had been there from the start, after a rollback too."""
    plain = StageSettings(1, AlgorithmConfig().advantage, AlgorithmConfig(), None, _OPTIMIZER)
    critic = AlgorithmConfig(advantage="gae", critic=CriticConfig(lr=3e-3))
    stages = (plain, StageSettings(2, "gae", critic, None, _OPTIMIZER))
    whole, before = trainer(stages=stages), trainer(stages=(plain,))
    for one in (whole, before):
        one.step(batch(1))
    before.save(tmp_path / "step-1", 1)
    appended = trainer(stages=stages)
    for _ in range(2):
        appended.load(tmp_path / "step-1")
        report = appended.step(batch(2))
    assert report.metrics == whole.step(batch(2)).metrics
    for host in ("policy", "critic"):
        assert _same(*(_weights(getattr(one._learner, host)) for one in (whole, appended)))


def test_the_critic_learns_at_the_rate_of_the_configuration_and_of_the_stage(trainer, batch, tmp_path):
    def of_stage(first_step, lr):
        return StageSettings(
            first_step, "gae", AlgorithmConfig(advantage="gae", critic=CriticConfig(lr=lr)), None, _OPTIMIZER
        )

    def rate(trained):
        return [group["lr"] for group in trained._learner.critic.engine.optimizer.param_groups]

    before = trainer(advantage="gae", critic={"lr": 1e-3})
    before.step(batch(1))
    before.save(tmp_path / "step-1", 1)
    again = trainer(stages=(of_stage(1, 2e-3), of_stage(3, 4e-3)), advantage="gae")
    again.load(tmp_path / "step-1")
    again.step(batch(2))
    assert rate(again) == [2e-3]
    again.step(batch(3))
    assert rate(again) == [4e-3]


def test_while_the_critic_warms_up_the_policy_stays(trainer, batch):
    trained = trainer(advantage="gae", critic={"warmup_steps": 1})
    before = [_weights(host) for host in (trained._learner.policy, trained._learner.critic)]
    assert trained.step(batch(1)).metrics["actor/update_skipped"] == 1.0
    assert _same(before[0], _weights(trained._learner.policy))
    assert not _same(before[1], _weights(trained._learner.critic))
    assert trained.step(batch(2)).metrics["actor/update_skipped"] == 0.0


def test_the_reference_is_where_the_run_started_and_stays_there(trainer, batch):
    trained = trainer(kl_loss_coef=0.1, kl_loss_type="k2", lr=1e-2)
    before = _weights(trained._learner.reference)
    distances = [trained.step(batch(step)).metrics["kl_loss"] for step in (1, 2)]
    assert distances[0] == pytest.approx(0.0, abs=1e-9)
    assert distances[1] > 1e-4
    assert _same(before, _weights(trained._learner.reference))


def test_the_distance_from_the_reference_is_a_token_s_however_the_loss_adds_up(trainer, batch):
    # GRPO with Dr. GRPO's sum over an answer: the loss is a whole answer's, what the warning reads is a token's.
    trained = trainer(
        kl_loss_coef=0.1, kl_loss_type="k3", loss_agg_mode="seq-mean-token-sum", old_logprobs="trainer", lr=1e-2
    )
    trained.step(batch(1))
    samples = batch(2).samples
    ours = trained._learner.policy.measure(samples, "log_probs")["log_probs"]
    reference = trained._learner.reference.measure(samples, "log_probs")["log_probs"]
    metrics = trained.step(batch(2)).metrics
    behind = []
    for sample in samples:
        for q, p, counts in zip(reference[sample.sample_id], ours[sample.sample_id], sample.loss_mask, strict=True):
            behind += [math.exp(q - p) - (q - p) - 1] if counts else []
    assert metrics["reference/kl"] == pytest.approx(sum(behind) / len(behind), rel=1e-3)
    assert metrics["kl_loss"] == pytest.approx(sum(behind) / len(samples), rel=1e-3)


def test_a_reference_with_another_vocabulary_is_refused(trainer, tiny_models):
    other = tiny_models("llama", vocab_size=64)
    with pytest.raises(TrainingError, match="has 64 tokens and the policy 512"):
        trainer(kl_loss_coef=0.1, reference_dir=other)


def test_a_step_that_is_rejected_as_a_whole_changes_nothing(trainer, batch):
    trained = trainer(rollout_rs="seq_max_k2", rollout_rs_threshold=1e-12)
    before = _weights(trained._learner.policy)
    report = trained.step(batch(1))
    assert (report.tokens_trained, report.metrics["actor/update_skipped"]) == (0, 1.0)
    assert _same(before, _weights(trained._learner.policy))


def test_a_token_baseline_is_given_the_weights_of_the_correction(trainer, batch):
    from lightning_trainer.training.update.estimation.advantages import estimate
    from lightning_trainer.training.update.losses import correct

    trained = trainer(advantage="optimal_token_baseline", rollout_is="token")
    samples, algorithm = batch(1).samples, trained._learner._algorithm
    measured = dict(trained._learner.policy.measure(samples, "log_probs", "sum_pi_squared"))
    measured["old_log_probs"] = measured["log_probs"]
    measured["rollout_is_weights"] = correct(samples, measured["log_probs"], algorithm).weights
    expected = estimate(samples, "optimal_token_baseline", algorithm, measured=measured).advantages
    found = trained._learner.learn(samples, 1).advantages
    assert found == {name: pytest.approx(row, abs=1e-5) for name, row in expected.items()}


def test_a_scheme_that_needs_values_trains(trainer, batch):
    report = trainer(value_credit=GaeTurnsCredit(), advantage="credit").step(batch(1))
    assert report.metrics["actor/update_skipped"] == 0.0
    assert report.metrics["critic/vf_loss"] > 0


@pytest.mark.parametrize("algorithm", ["ppo", "starpo_s", "grpo", "dapo"])
def test_a_repeated_step_gives_the_same_weights(algorithm, trainer, batch):
    first, second = trainer(preset=algorithm), trainer(preset=algorithm)
    reports = [one.step(batch(1)) for one in (first, second)]
    assert reports[0].metrics == reports[1].metrics
    assert _same(_weights(first._learner.policy), _weights(second._learner.policy))
