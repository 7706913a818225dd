"""What a critic's schemes are given: each call's own reward, and at the end of every branch the attempt's as well."""

from lightning_trainer.samples.credit.schemes.critic.turn_rewards import TurnRewards


def test_the_end_is_met_by_the_last_call_of_every_branch(team, values):
    steps = [("1", 0.5, None), ("2", 0.0, "1"), ("3", 0.25, "1")]
    assert values(TurnRewards(), team("a", 1.0, {"solver": 2.0}, solver=steps)) == {"1": 0.5, "2": 3.0, "3": 3.25}


def test_where_the_end_is_missing_all_that_led_to_it_is(team, values):
    """An advantage counts every reward that follows, and missing is not zero (promise 6)."""
    scored = team("a", 1.0, solver=[("1", None, None), ("2", None, "1")])
    unscored = team("b", None, solver=[("3", None, None), ("4", None, "3")])
    assert values(TurnRewards(), [*scored, *unscored]) == {"1": 0.0, "2": 1.0, "3": None, "4": None}


def test_a_missing_step_is_missing_before_it_and_not_after(team, values):
    steps = [("1", 0.5, None), ("2", None, "1"), ("3", 0.25, "2"), ("4", 0.0, "1")]
    assert values(TurnRewards(), team("a", solver=steps)) == {"1": None, "2": None, "3": 0.25, "4": 0.0}


def test_without_any_reward_nothing_is_known(team, values):
    assert values(TurnRewards(), team("a", solver=[("1", None, None)])) == {"1": None}
