from lightning_trainer.samples.credit.schemes.steps import StepRewards


def test_every_call_gets_its_own_reward_and_nothing_of_what_follows(team, values):
    attempt = team("a1", 9.0, solver=[("1", 0.5, None), ("2", -1.0, "1"), ("3", 0.0, "2")])
    assert values(StepRewards(), attempt) == {"1": 0.5, "2": -1.0, "3": 0.0}


def test_a_call_that_was_not_scored_is_missing_and_not_zero(team, values):
    assert values(StepRewards(), team("a1", 9.0, solver=[("1", 0.5, None), ("2", None, "1")])) == {"1": 0.5, "2": None}
    assert values(StepRewards(), team("a1", 9.0, solver=[("1", None, None)])) == {"1": None}


def test_every_call_is_a_row(team):
    ((one, two),) = StepRewards()(team("a1", solver=[("1", 1.0, None), ("2", 1.0, "1")]))
    assert (one.row_id, two.row_id) == ("1", "2")
