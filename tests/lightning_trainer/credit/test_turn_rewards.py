"""What a critic's schemes are given: each call's own reward, and at the end of every branch the attempt's as well."""

from lightning_trainer.credit.turn_rewards import TurnRewards


def test_the_end_is_met_by_the_last_call_of_every_branch(team, values):
    steps = [("1", 0.5, None), ("2", 0.0, "1"), ("3", 0.25, "1")]
    assert values(TurnRewards(), team("a", 1.0, {"solver": 2.0}, solver=steps)) == {"1": 0.5, "2": 3.0, "3": 3.25}


def test_a_missing_end_is_missing_at_the_end_alone(team, values):
    scored = team("a", 1.0, solver=[("1", None, None), ("2", None, "1")])
    unscored = team("b", None, solver=[("3", None, None), ("4", None, "3")])
    assert values(TurnRewards(), [*scored, *unscored]) == {"1": 0.0, "2": 1.0, "3": 0.0, "4": None}


def test_without_any_reward_nothing_is_known(team, values):
    assert values(TurnRewards(), team("a", solver=[("1", None, None)])) == {"1": None}
