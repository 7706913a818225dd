"""What is said of a schedule before a run: a loss that cannot differ, a clip that rounding fills, too few groups."""

import pytest

from lightning_trainer.cli.doctor.machine import check_schedule
from lightning_trainer.config import Config
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.training.settings import most_mini_batches, schedule_notes, schedule_sentences


def _said(*, groups: int = 8, staleness: int | None = None, rounds: bool = True, **algorithm) -> list[str]:
    given = AlgorithmConfig(**algorithm)
    return list(schedule_sentences(given, groups_per_step=groups, max_staleness=staleness, rounds=rounds))


def _loss(name: str) -> dict:
    return {"policy_loss": name, **({"dro_beta": 1.0} if name == "dro" else {})}


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_loss_that_cannot_differ_under_the_schedule_is_named(name):
    plain = name in ("vanilla", "gpg", "clip_cov", "kl_cov")
    once = [sentence for sentence in _said(**_loss(name)) if "plain policy gradient" in sentence]
    assert len(once) == (0 if plain else 1)
    assert all(f"policy_loss = {name!r}" in sentence for sentence in once)
    for schedule in ("mini_batches", "ppo_epochs"):
        assert not any("plain policy gradient" in sentence for sentence in _said(**{**_loss(name), schedule: 2}))


def test_stale_samples_have_a_ratio_of_their_own_unless_it_is_taken_against_the_trainer():
    assert _said(policy_loss="cispo", staleness=1) == []
    assert len(_said(policy_loss="cispo", staleness=0)) == 1
    assert len(_said(policy_loss="cispo", staleness=1, old_logprobs="trainer")) == 1


def test_mini_batches_that_the_groups_do_not_fill_are_told():
    assert most_mini_batches(AlgorithmConfig(mini_batches=16), 8) == 4
    (sentence,) = _said(mini_batches=16, groups=8)
    assert "at most 4 in an epoch; groups_per_step = 32 gives all of them" in sentence
    (sentence,) = _said(preset="starpo_s", mini_batches=2, groups=8)
    assert "groups_per_step = 8, of which keep_most_uncertain = 0.25 are trained: a mini-batch has 2" in sentence
    assert "at most 1 in an epoch; groups_per_step = 16 gives all of them" in sentence
    assert _said(preset="starpo_s", mini_batches=2, groups=16) == []
    # A preset's number is of its paper's batch; but three groups leave one update, and the loss is vanilla's again.
    (sentence,) = _said(preset="cispo", groups=3)
    assert "policy_loss = 'cispo' has the gradient of plain policy gradient" in sentence


def test_a_clip_range_within_the_rounding_is_told_where_the_engine_is_compared_with():
    tight = {"policy_loss": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "mini_batches": 2}
    (sentence,) = _said(**tight)
    assert "a clip range of 0.0003 is narrower" in sentence
    assert 'old_logprobs = "trainer"' in sentence
    assert _said(**tight, old_logprobs="trainer") == []
    assert _said(**tight, rollout_is="token") == []
    assert _said(**tight, rounds=False) == []


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_needs_no_word(name):
    assert _said(preset=name) == []


def test_daemon_and_doctor_say_it_once_of_all_stages():
    policy = {"name": "p", "agents": ["*"], "model": "random:tiny"}
    stages = [{"algorithm": {"policy_loss": "cispo"}, "steps": 3}, {"algorithm": {"policy_loss": "cispo", "lam": 0.9}}]
    config = Config.model_validate({"policy": [{**policy, "stage": stages}]})
    (note,) = schedule_notes(config, config.policy[0])
    (check,) = check_schedule(config, config.policy[0])
    assert f"{check.found}; {check.mend}" == note
    assert "max_sample" not in note
    frozen = Config.model_validate({"policy": [{**policy, "train": False, "algorithm": {"policy_loss": "cispo"}}]})
    assert schedule_notes(frozen, frozen.policy[0]) == []


@pytest.mark.parametrize(
    ("longest", "more", "said"),
    [
        (8192, {}, 1),
        (8192, {"max_sample_tokens": 2048}, 0),
        (2048, {}, 0),
        (1024, {}, 0),
        (2048, {"engine": {"max_model_len": 8192}}, 1),
        (8192, {"engine": {"max_model_len": 2048}}, 0),
    ],
)
def test_what_is_served_and_too_long_to_be_trained_is_told_where_nobody_has_said_so(longest, more, said):
    policy = {"name": "p", "agents": ["*"], "model": "random:tiny", **more}
    config = Config.model_validate({"engine": {"max_model_len": longest}, "policy": [policy]})
    notes = schedule_notes(config, config.policy[0])
    assert len(notes) == said
    assert all("max_model_len = 8192" in note and "; set max_sample_tokens" in note for note in notes)
