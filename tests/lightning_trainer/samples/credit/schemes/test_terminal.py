import math

import pytest

from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.schemes.terminal import TerminalReward
from lightning_trainer.types import Credit


def test_every_call_is_credited_with_the_reward_of_its_attempt(make_transition, make_trajectory, make_attempt):
    scored = make_trajectory(make_transition("1"), make_transition("2", reward=9.0), reward=0.75)
    unscored = make_trajectory(make_transition("3"), attempt=make_attempt("a2"))
    assert TerminalReward()([scored, unscored]) == [
        [Credit(0.75, "a1/solver"), Credit(0.75, "a1/solver")],
        [Credit(None, "a2/solver")],
    ]


def test_a_reward_that_is_not_a_number_is_refused(make_transition, make_trajectory):
    with pytest.raises(CreditAssignmentError, match=r"a1.*nan"):
        TerminalReward()([make_trajectory(make_transition("1"), reward=math.nan)])
