"""Each warning appears on a history that shows it, and not on the one next to it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.config.metrics import WarningsConfig
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.metrics.warnings import (
    RULES,
    entropy_collapse,
    kl_blowup,
    mismatch_growth,
    nothing_selected,
    other_weights,
    reward_fall,
    sampling_unknown,
    update_skipped,
    warnings_of,
    zero_variance,
)

BOUNDS = WarningsConfig()


def rows(name: str, values: Sequence[float], **others: float) -> list[StepMetrics]:
    return [StepMetrics("p", step, {name: value, **others}) for step, value in enumerate(values, start=1)]


def one(**values: float) -> list[StepMetrics]:
    return [StepMetrics("p", 7, {name.replace("__", "/"): value for name, value in values.items()})]


def test_entropy_below_a_tenth_of_the_starts_for_three_steps_is_collapse():
    start = [1.0, 1.1, 0.9, 1.0, 1.0]
    sentence = entropy_collapse(rows("entropy/sampled", [*start, 0.5, 0.09, 0.08, 0.07]), BOUNDS)
    assert sentence is not None
    assert "0.07 nats a token, 1.1 at the start" in sentence
    assert entropy_collapse(rows("entropy/sampled", [*start, 0.5, 0.09, 0.12, 0.07]), BOUNDS) is None
    assert entropy_collapse(rows("entropy/sampled", [*start, 0.05, 0.05]), BOUNDS) is None


def test_a_collapse_within_the_first_steps_is_told():
    # Before: the start was the median of five steps, and had collapsed with the third (quickstart, learning rate 5e-5).
    collapsing = [0.917, 0.229, 0.119, 0.063, 0.012, 0.037]
    assert entropy_collapse(rows("entropy/sampled", collapsing[:5]), BOUNDS) is None
    sentence = entropy_collapse(rows("entropy/sampled", collapsing), BOUNDS)
    assert sentence is not None
    assert "0.037 nats a token, 0.917 at the start" in sentence
    assert "lower the learning rate" in sentence


def test_certainty_about_solved_tasks_is_no_collapse():
    values = [1.0] * 5 + [0.01] * 3
    half_solved = {"groups/total": 8.0, "groups/solved": 4.0}
    assert entropy_collapse(rows("entropy/sampled", values, **half_solved), BOUNDS) is None
    assert entropy_collapse(rows("entropy/sampled", values, **{**half_solved, "groups/solved": 3.0}), BOUNDS)


def test_other_weights_are_told_from_the_first_step_on():
    # Before: a wrong [[policy.trusted]] was in the metrics alone, since it is as wrong at the start as later.
    told = other_weights(rows("mismatch/abs_mean", [1.7]), BOUNDS)
    assert told is not None
    assert "differ by 1.7 nats a token" in told
    assert "[[policy.trusted]]" in told
    assert warnings_of(rows("mismatch/abs_mean", [1.7]), BOUNDS) == {"other_weights": told}
    assert other_weights(rows("mismatch/abs_mean", [0.3]), BOUNDS) is None
    assert other_weights([], BOUNDS) is None


def test_mismatch_must_double_and_be_large_enough_to_matter():
    assert mismatch_growth(rows("mismatch/abs_mean", [0.03] * 5 + [0.07] * 3), BOUNDS)
    assert mismatch_growth(rows("mismatch/abs_mean", [0.001] * 5 + [0.04] * 3), BOUNDS) is None
    assert mismatch_growth(rows("mismatch/abs_mean", [0.05] * 5 + [0.09] * 3), BOUNDS) is None
    assert mismatch_growth(rows("mismatch/abs_mean", [0.03] * 5 + [0.07, 0.05, 0.07]), BOUNDS) is None


def test_zero_variance_says_whether_all_is_solved_or_nothing():
    history = rows("groups/zero_variance", [8, 8, 8], **{"groups/total": 8, "groups/solved": 8})
    solved = zero_variance(history, BOUNDS)
    hopeless = zero_variance(rows("groups/zero_variance", [8, 8, 8], **{"groups/total": 8, "groups/solved": 2}), BOUNDS)
    assert solved is not None
    assert "make the tasks harder" in solved
    assert hopeless is not None
    assert "make the tasks easier" in hopeless
    assert "sample at a lower temperature if answers fall apart" in hopeless
    assert zero_variance(rows("groups/zero_variance", [8, 8, 7], **{"groups/total": 8}), BOUNDS) is None
    assert zero_variance(history[:2], BOUNDS) is None
    assert zero_variance(rows("groups/zero_variance", [0, 0, 0], **{"groups/total": 0}), BOUNDS) is None


def test_zero_variance_after_a_better_step_is_blamed_on_an_update_and_not_on_the_tasks():
    def history(*rewards: float) -> list[StepMetrics]:
        spread = {"groups/total": 8.0, "groups/zero_variance": 4.0}
        first, *others = rows("reward/mean", rewards, **spread)
        return [first, *(StepMetrics("p", row.step, {**row.values, "groups/zero_variance": 8.0}) for row in others)]

    sentence = zero_variance(history(0.109, 0.0, 0.0, 0.0), BOUNDS) or ""
    assert "0, and 0.109 at step 1, so an update since then took away" in sentence
    assert "set the optimizer's warmup_steps" in sentence
    assert "make the tasks easier" in (zero_variance(history(0.2, 0.25, 0.25, 0.25), BOUNDS) or "")
    assert "make the tasks easier" in (zero_variance(history(0.0, 0.0, 0.0, 0.0), BOUNDS) or "")


def test_a_step_of_other_agents_calls_matches_no_selection():
    foreign = {"ledger__dropped": 30.0, "ledger__dropped/not_selected": 20.0, "ledger__dropped/no_agent": 10.0}
    sentence = nothing_selected(one(attempts__total=4, ledger__trained=0, **foreign), BOUNDS)
    assert sentence is not None
    assert "all 30 sampled tokens" in sentence
    uncaptured = nothing_selected(one(attempts__total=4), BOUNDS)
    assert uncaptured is not None
    assert "no call through the gateway" in uncaptured


@pytest.mark.parametrize(
    "values",
    [
        {"attempts__total": 4, "ledger__trained": 1, "ledger__dropped": 5, "ledger__dropped/not_selected": 5},
        {"attempts__total": 4, "ledger__trained": 0, "ledger__masked": 5, "ledger__masked/zero_variance_group": 5},
        {"attempts__total": 0, "ledger__trained": 0},
    ],
    ids=["something is trained", "claimed but masked", "no attempts"],
)
def test_a_selection_that_matched_is_not_blamed(values):
    assert nothing_selected(one(**values), BOUNDS) is None


def test_kl_beyond_its_bound_names_what_it_is_measured_from():
    assert "weights that sampled" in (kl_blowup(one(actor__ppo_kl=-0.2), BOUNDS) or "")
    assert "reference model" in (kl_blowup(one(actor__ppo_kl=0.05, reference__kl=0.6), BOUNDS) or "")
    assert kl_blowup(one(actor__ppo_kl=0.09, reference__kl=0.4), BOUNDS) is None


def test_the_loss_of_a_whole_answer_is_not_taken_for_nats_a_token():
    assert kl_blowup(one(kl_loss=30.0, reference__kl=0.1), BOUNDS) is None


def test_a_reward_that_falls_after_its_peak_names_the_step_to_go_back_to():
    up = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9]
    sentence = reward_fall(rows("reward/mean", [*up, 0.5, 0.4, 0.4, 0.4, 0.4]), BOUNDS)
    assert sentence is not None
    assert "0.42 on average of 5 steps, 0.9 at step 13" in sentence
    assert reward_fall(rows("reward/mean", up), BOUNDS) is None


def test_a_reward_that_only_scatters_has_not_fallen():
    scatter = [0.5, 0.2, 0.6, 0.3, 0.7, 0.6, 0.2, 0.4, 0.7, 0.3, 0.2, 0.5, 0.3, 0.6, 0.2]
    assert reward_fall(rows("reward/mean", scatter), BOUNDS) is None


def test_a_skipped_update_is_said_once_its_step_is_there():
    assert "step 7" in (update_skipped(one(actor__update_skipped=1.0, optimizer__updates=2.0), BOUNDS) or "")
    assert update_skipped(one(actor__update_skipped=0.0, optimizer__updates=2.0), BOUNDS) is None


def test_a_step_without_an_update_had_no_gradient_that_was_not_finite():
    # As while a critic warms up, or where the correction rejected all of a step.
    assert update_skipped(one(actor__update_skipped=1.0), BOUNDS) is None


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["entropy/sampled", "mismatch/abs_mean", "reward/mean", "actor/ppo_kl", "groups/total"]),
            st.floats(0, 10),
        ),
        max_size=30,
    )
)
def test_no_history_makes_a_rule_fail(values):
    history = [StepMetrics("p", step, row) for step, row in enumerate(values, start=1)]
    assert warnings_of(history, BOUNDS).keys() <= RULES.keys()


def test_an_empty_history_has_nothing_wrong():
    assert warnings_of([], BOUNDS) == {}


def test_tokens_dropped_for_their_sampling_are_a_warning_from_a_twentieth_on():
    dropped = "ledger__dropped", "ledger__dropped__sampling_unknown"
    sentence = sampling_unknown(one(ledger__trained=50.0, **dict.fromkeys(dropped, 50.0)), BOUNDS)
    assert sentence is not None
    assert sentence.startswith("sampling unknown: 50% of the step's sampled tokens")
    assert sampling_unknown(one(ledger__trained=99.0, **dict.fromkeys(dropped, 1.0)), BOUNDS) is None
    assert sampling_unknown(one(ledger__trained=99.0), BOUNDS) is None


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_where_requests_changed_what_was_drawn_from_the_learning_rate_is_not_blamed_first(share):
    told = kl_blowup(one(actor__ppo_kl=0.5, sampling__restricted=share), BOUNDS)
    growth = mismatch_growth(
        rows("mismatch/abs_mean", [0.01] * 5 + [0.2] * 3, **{"sampling/restricted": share}), BOUNDS
    )
    assert told is not None
    assert growth is not None
    for sentence in (told, growth):
        assert ("50% of the tokens were drawn with top_p, a grammar" in sentence) == bool(share)
