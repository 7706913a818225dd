from dataclasses import replace

from lightning_trainer.samples.credit.assignment import assign
from lightning_trainer.samples.credit.schemes.discounted import DiscountedReturn
from lightning_trainer.samples.credit.schemes.terminal import TerminalReward
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.reasons import Reason


def test_a_call_that_is_too_long_is_left_out_after_it_has_been_credited(make_transition, make_trajectory):
    short = make_transition("short", (1,), (2,))
    long = make_transition("long", (1, 2, 3), (4,), parent_id="short", reward=None)
    assignment = assign([make_trajectory(short, long, reward=1.0)], DiscountedReturn(0.5), Limit(3))
    assert {name: credit.value for name, credit in assignment.credits.items()} == {"short": 0.5}
    assert assignment.refused == {"long": Reason.OVER_LENGTH}
    assert assignment.row_credits == {"a1": {("solver", ""): (0.5,)}}


def test_an_attempt_without_reward_has_no_rows(make_transition, make_trajectory):
    assignment = assign([make_trajectory(make_transition("1"))], TerminalReward(), Limit(8))
    assert (assignment.credits, assignment.refused) == ({}, {"1": Reason.NO_REWARD})
    assert assignment.row_credits == {}


def test_what_is_expected_of_one_agent_is_not_expected_of_another(make_transition, make_trajectory):
    stepwise = make_trajectory(make_transition("1", reward=1.0), reward=1.0)
    other = replace(make_trajectory(make_transition("2", agent="critic"), reward=1.0), agent="critic")
    assignment = assign([stepwise, other], DiscountedReturn(1.0), Limit(8))
    assert {name: credit.value for name, credit in assignment.credits.items()} == {"1": 2.0, "2": 1.0}
    assert assignment.row_credits == {"a1": {("solver", ""): (2.0,), ("critic", ""): (1.0,)}}
