import pytest

from lightning_trainer.samples.credit.schemes.hierarchical import Hierarchical

AGENTS = {"planner": [("p1", None, None)], "worker": [("w1", None, None), ("w2", None, "w1"), ("w3", None, "w2")]}


def test_first_the_agents_then_their_calls_by_hand(team, values):
    """R = 6: 3 to each agent; the planner's one call gets 3, each of the worker's three calls 1."""
    assert values(Hierarchical(), team("a1", 6.0, **AGENTS)) == pytest.approx(
        {"p1": 3.0, "w1": 1.0, "w2": 1.0, "w3": 1.0}
    )


def test_weights_and_the_agents_own_rewards_by_hand(team, values):
    """Weights 2 to 1: planner 4, worker 2 and its own 1: 3 over three calls."""
    attempt = team("a1", 6.0, own={"worker": 1.0}, **AGENTS)
    assert values(Hierarchical({"planner": 2.0}), attempt) == pytest.approx(
        {"p1": 4.0, "w1": 1.0, "w2": 1.0, "w3": 1.0}
    )


@pytest.mark.parametrize("weights", [{"work*": 2.0}, {"w*": 9.0, "worker": 2.0}, {"work*": 2.0, "w*": 9.0}])
def test_a_weight_is_that_of_the_name_or_else_of_the_first_pattern_that_fits_by_hand(team, values, weights):
    """Weights 1 to 2: planner 2, worker 4 over three calls."""
    assert values(Hierarchical(weights), team("a1", 6.0, **AGENTS)) == pytest.approx(
        {"p1": 2.0, "w1": 4 / 3, "w2": 4 / 3, "w3": 4 / 3}
    )


def test_rewards_of_single_calls_come_on_top_and_make_every_call_a_row(team):
    attempt = team("a1", 2.0, planner=[("p1", None, None)], worker=[("w1", 0.5, None), ("w2", 0.25, "w1")])
    planner, worker = Hierarchical()(attempt)
    assert [(credit.value, credit.row_id) for credit in planner] == [(1.0, "a1/planner")]
    assert [(credit.value, credit.row_id) for credit in worker] == [(1.0, "w1"), (0.75, "w2")]


def test_one_agents_missing_reward_is_not_the_others(team, values):
    scored = team("a1", 2.0, own={"worker": 1.0}, planner=[("p1", None, None)], worker=[("w1", None, None)])
    unscored = team("a2", 2.0, planner=[("p2", None, None)], worker=[("w2", None, None)])
    assert values(Hierarchical(), scored + unscored) == {"p1": 1.0, "w1": 2.0, "p2": 1.0, "w2": None}
