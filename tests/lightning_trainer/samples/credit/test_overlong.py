"""Soft overlong punishment by hand: DAPO, equation 13."""

import pytest

from lightning_trainer.samples.credit.schemes.terminal import TerminalReward
from lightning_trainer.samples.group_credit import OverlongShaping, overlong_penalty


@pytest.mark.parametrize(("tokens", "taken_off"), [(1, 0.0), (80, 0.0), (85, 0.25), (90, 0.5), (100, 1.0), (500, 1.0)])
def test_it_grows_over_the_buffer_and_no_further(tokens, taken_off):
    found = overlong_penalty(tokens, max_response_tokens=100, buffer_tokens=20, penalty=1.0)
    assert found == pytest.approx(taken_off)


def test_a_row_is_punished_for_its_longest_response(make_transition, make_trajectory):
    short, long = make_transition("1", response=(1,) * 5), make_transition("2", response=(1,) * 9, parent_id="1")
    trajectory = make_trajectory(short, long, reward=1.0)
    shaped = OverlongShaping(TerminalReward(), max_response_tokens=10, buffer_tokens=4, penalty=2.0)
    ((first, second),) = shaped([trajectory])
    assert first.value == second.value == pytest.approx(1.0 - 2.0 * 3 / 4)


def test_a_missing_reward_stays_missing(make_transition, make_trajectory):
    trajectory = make_trajectory(make_transition("1", response=(1,) * 99), reward=None)
    ((credit,),) = OverlongShaping(TerminalReward(), max_response_tokens=10, buffer_tokens=4)([trajectory])
    assert credit.value is None
