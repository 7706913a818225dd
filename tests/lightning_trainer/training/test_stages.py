"""Which stage a step belongs to, what a stage changes, and stages that cannot be."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.errors import ConfigError
from lightning_trainer.training.settings import trainer_settings

TEXT = """
[[policy]]
name = "math"
agents = ["solver"]
model = "random:tiny"
optimizer = { lr = 1e-5 }

[[policy.stage]]
algorithm = "sft"
data = "demos.jsonl"
steps = 3
lr = 2e-5

[[policy.stage]]
steps = 2
reward = "format"
credit = { scheme = "steps" }

[[policy.stage]]
algorithm = "grpo"
"""


def _policy(**changes) -> PolicyConfig:
    return PolicyConfig.model_validate({"name": "p", "agents": ["*"], "model": "random:tiny", **changes})


@pytest.fixture
def config(tmp_path):
    (tmp_path / "demos.jsonl").touch()
    (tmp_path / "lightning.toml").write_text(TEXT)
    return load_config(tmp_path / "lightning.toml")


def test_a_step_is_trained_by_the_settings_of_its_stage(config):
    policy = config.only_policy
    seen = [policy.at_step(step) for step in (1, 3, 4, 5, 6, 1000)]
    assert [one.algorithm.preset for one in seen] == ["sft", "sft", None, None, "grpo", "grpo"]
    assert [one.credit.scheme for one in seen] == ["terminal", "terminal", "steps", "steps", "terminal", "terminal"]
    assert [one.optimizer.lr for one in seen] == [2e-5, 2e-5, 1e-5, 1e-5, 1e-5, 1e-5]
    assert [list(one.reward_weights) for one in seen] == [["reward"]] * 2 + [["format"]] * 2 + [["reward"]] * 2
    assert policy.shown_steps == ((1, 3),)
    assert policy.stage[0].data is not None
    assert policy.stage[0].data.is_absolute()


def test_a_run_ends_with_its_last_stage_or_its_last_step(config):
    assert config.only_policy.last_step is None
    both = [{"algorithm": "sft", "steps": 3}, {"steps": 4}]
    assert _policy(stage=both).last_step == 7
    assert _policy(stage=both, max_steps=5).last_step == 5
    assert _policy(max_steps=5).last_step == 5


def test_attempts_are_taken_while_there_is_a_later_stage_that_is_not_shown_a_file(config):
    policy, shown = config.only_policy, {"algorithm": "sft", "data": "demos.jsonl"}
    assert [policy.takes_attempts_after(step) for step in (0, 3, 1000)] == [True, True, True]
    assert not policy.model_copy(update={"max_steps": 3}).takes_attempts_after(0)
    last = _policy(stage=[{"steps": 2}, {"steps": 3, **shown}])
    assert [last.takes_attempts_after(step) for step in (0, 1, 2, 5)] == [True, True, False, False]
    assert not _policy(stage=[shown]).takes_attempts_after(0)
    assert [_policy(max_steps=2).takes_attempts_after(step) for step in (0, 1, 2)] == [True, True, False]


def test_the_trainer_knows_all_stages(config):
    settings = trainer_settings(config, config.only_policy, Path("model"), Path("logs"))
    assert [settings.at_step(step).algorithm.preset for step in (1, 3, 4, 6)] == ["sft", "sft", None, "grpo"]
    assert [settings.at_step(step).first_step for step in (1, 3, 4, 6)] == [1, 1, 4, 6]
    assert (settings.optimizer.lr, settings.at_step(9).optimizer.lr) == (2e-5, 1e-5)
    assert [one.algorithm.needs_reference for one in settings.of_stages] == [False, False, True]


def test_a_policy_without_stages_is_itself_in_every_step():
    policy = _policy()
    assert policy.at_step(3) is policy
    assert (policy.of_stages, policy.stage_at(3), policy.shown_steps) == ((policy,), None, ())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stage": [{"algorithm": "sft"}, {}]}, "stage 1 has no steps, so stage 2 would never begin"),
        ({"stage": [{"data": "x.jsonl"}]}, "data = 'x.jsonl' is for algorithm 'sft' or 'dpo'"),
        ({"stage": [{"algorithm": "grpo", "data": "x"}]}, "reinforcement learning samples by itself"),
        ({"stage": [{"algorithm": "dpo", "credit": {"scheme": "steps"}}]}, "'steps' divides rewards, and 'dpo' only"),
        ({"stage": [{"credit": {"scheme": "stepz"}}]}, "credit scheme 'stepz' is unknown"),
        (
            {"algorithm": "dpo", "stage": [{"credit": {"scheme": "steps"}}]},
            "'steps' divides rewards, and 'dpo' only",
        ),
        ({"stage": [{"algorithm": "remax"}]}, "there is no algorithm 'remax'"),
        (
            {"credit": {"scheme": "gigpo"}, "stage": [{"algorithm": "sft", "steps": 1}, {"algorithm": "rloo"}]},
            "kl_reward_coef = 0.03 is taken off rewards",
        ),
        (
            {
                "stage": [
                    {"algorithm": {"preset": "dpo", "reference_model": "a"}, "steps": 1},
                    {"algorithm": {"preset": "grpo", "reference_model": "b"}},
                ]
            },
            "the stages name the reference models a, b; one is loaded",
        ),
        (
            {
                "stage": [
                    {"algorithm": {"preset": "dpo", "reference_model": "a"}, "steps": 1},
                    {"algorithm": "grpo"},
                ]
            },
            "the stages name the reference model a, and a stage that needs a reference too names none",
        ),
        ({"algorithm": "sft", "credit": {"scheme": "steps"}}, "'steps' divides rewards, and 'sft' only compares"),
        ({"algorithm": {"preset": "sft", "policy_loss": "vanilla"}}, "policy_loss = 'vanilla' would replace"),
        ({"algorithm": {"objective": "dpo"}}, "write preset = 'dpo'"),
        ({"algorithm": {"preset": "sft", "clip_ratio_low": 0.1}}, "clip_ratio_low = 0.1 has no effect with"),
        ({"algorithm": {"preset": "dpo", "entropy_coeff": 0.1}}, "entropy_coeff = 0.1 has no effect with"),
        ({"algorithm": {"preset": "dpo", "loss_agg_mode": "token-mean"}}, "'dpo' is a mean over pairs"),
        ({"algorithm": {"preset": "dpo", "dpo": {"label_smoothing": 0.5}}}, "less than 0.5"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes, said):
    with pytest.raises(ValidationError, match=said):
        _policy(**changes)


def test_a_stage_is_shown_its_data_by_the_policys_own_algorithm(tmp_path):
    shown = tmp_path / "demos.jsonl"
    shown.write_text('{"prompt_ids": [1, 2], "response_ids": [3]}\n')
    (tmp_path / "config.json").write_text('{"vocab_size": 320}')
    policy = _policy(algorithm="sft", stage=[{"data": shown, "steps": 1}, {"algorithm": "grpo"}])
    assert [one.algorithm.objective for one in policy.of_stages] == ["sft", "rl"]
    demonstrations = Demonstrations(policy)
    demonstrations.read(tmp_path)
    assert [demonstrations.has(step) for step in (1, 2)] == [True, False]
    build, _ = demonstrations.build(1)
    assert build.batch is not None
    assert [sample.token_ids for sample in build.batch.samples] == [(1, 2, 3)]


def test_data_that_is_not_there_is_refused_by_its_name_until_its_stage_is_over(tmp_path):
    (tmp_path / "lightning.toml").write_text(TEXT)
    (tmp_path / "config.json").write_text('{"vocab_size": 320}')
    demonstrations = Demonstrations(load_config(tmp_path / "lightning.toml").only_policy)
    for done in (0, 2):
        with pytest.raises(ConfigError, match=r"policy\.math\.stage\.data: there is no file /.*demos\.jsonl"):
            demonstrations.read(tmp_path, done=done)
    demonstrations.read(tmp_path, done=3)
    assert not demonstrations.has(4)
