from lightning_trainer.samples.group_credit import read_baselines
from lightning_trainer.types import AttemptState, RolloutMode


def test_a_group_has_the_reward_of_its_baseline_attempt(make_attempt):
    attempts = [
        make_attempt("a", group_id="g"),
        make_attempt("b", group_id="g", mode=RolloutMode.BASELINE),
        make_attempt("e", group_id="g", mode=RolloutMode.EVALUATE),
        make_attempt("c", group_id="h", mode=RolloutMode.BASELINE),
        make_attempt("d", group_id="i", mode=RolloutMode.BASELINE, state=AttemptState.RUNNING),
    ]
    found = read_baselines(attempts, {"a": 1.0, "b": 0.25, "e": 0.75, "c": None, "d": 1.0})
    assert found.of_groups == {"g": 0.25}
    assert found.unscored == {"c"}


def test_of_several_it_is_the_mean_of_those_that_were_scored(make_attempt):
    attempts = [make_attempt(name, mode=RolloutMode.BASELINE) for name in "abc"]
    found = read_baselines(attempts, {"a": 0.0, "b": 1.0, "c": None})
    assert (found.of_groups, found.unscored) == ({"g": 0.5}, frozenset())
