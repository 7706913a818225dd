"""GAE over turns, over tokens, and over both: numbers by hand, and how they meet each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.samples.credit.schemes.critic.gae import bilevel_gae, token_gae, turn_gae


def test_turns_by_hand():
    """r = 0, 1; V = 0.5, 0.25; end 2; gamma = 0.5, lam = 0.5.
    A_2 = 1 + 2 - 0.25 = 2.75. delta_1 = 0 + 0.5 * 0.25 - 0.5 = -0.375, A_1 = -0.375 + 0.25 * 2.75 = 0.3125."""
    assert turn_gae([None, 0], [0.0, 1.0], [0.5, 0.25], end=2.0, gamma=0.5, lam=0.5) == [0.3125, 2.75]


def test_turns_at_a_fork_take_the_mean_of_the_branches_by_hand():
    """V = 0, 1, 3; branches earn 5 and 3: A_b = 4, A_c = 0; V_next = 2, A_next = 2. A_a = 0 + 2 - 0 + 0.5 * 2 = 3."""
    assert turn_gae([None, 0, 0], [0.0, 5.0, 3.0], [0.0, 1.0, 3.0], gamma=1.0, lam=0.5) == [3.0, 4.0, 0.0]


def test_tokens_by_hand_skip_what_was_not_sampled():
    """Sampled: tokens 1, 2 and 4; rewards 1 on token 4; V = 0.5, 0.25, 0.75 there; gamma = lam = 0.5.
    A_4 = 1 - 0.75 = 0.25. delta_2 = 0.5 * 0.75 - 0.25 = 0.125, A_2 = 0.125 + 0.25 * 0.25 = 0.1875.
    delta_1 = 0.5 * 0.25 - 0.5 = -0.375, A_1 = -0.375 + 0.25 * 0.1875 = -0.328125."""
    found = token_gae([0.0, 0.0, 0.0, 0.0, 1.0], [9.0, 0.5, 0.25, 9.0, 0.75], [0, 1, 1, 0, 1], gamma=0.5, lam=0.5)
    assert found == [0.0, -0.328125, 0.1875, 0.0, 0.25]


def test_both_levels_by_hand():
    """Two turns of two tokens. V = (0.5, 0.25) and (1, 0.75); r = 0 and 1; gamma_turn = 0.5, lam_turn = 1.
    Turns, with V before their last tokens: A_2 = 1 - 0.75 = 0.25; A_1 = 0 + 0.5 * 0.75 - 0.25 + 0.5 * 0.25 = 0.25.
    Tokens, gamma_token = 1, lam_token = 0.5: turn 2: (0.75 - 1) + 0.5 * 0.25 = -0.125; turn 1: (0.25 - 0.5) + 0.125."""
    found = bilevel_gae(
        [0.0, 1.0],
        [[0.5, 0.25], [1.0, 0.75]],
        gamma_turn=0.5,
        lam_turn=1.0,
        gamma_token=1.0,
        lam_token=0.5,
    )
    assert found == [[-0.125, 0.25], [-0.125, 0.25]]


def test_both_levels_on_the_numbers_that_ragens_code_is_tried_with():
    """Values 0.1 to 1.0, a reward of 1 at the end of both turns of five tokens, gamma_turn = 0.95, all else 1.
    Turns: A_2 = 1 - 1 = 0; A_1 = 1 + 0.95 * 1 - 0.5 + 0.95 * 0 = 1.45. With gamma = lambda = 1 a token is the turn's
    advantage and what the value rises from there to the turn's last token, so by 0.1 a token less from 0.4 on."""
    values = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 1.0]]
    found = bilevel_gae([1.0, 1.0], values, gamma_turn=0.95, lam_turn=1.0, gamma_token=1.0, lam_token=1.0)
    assert found[0] == pytest.approx([1.85, 1.75, 1.65, 1.55, 1.45])
    assert found[1] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])


_numbers = st.floats(-10, 10, allow_nan=False)
_chain = st.lists(st.tuples(_numbers, _numbers), min_size=1, max_size=8)


@given(chain=_chain, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_turns_of_one_token_are_tokens(chain, gamma, lam):
    rewards, values = [reward for reward, _ in chain], [value for _, value in chain]
    parents = [None, *range(len(chain) - 1)]
    turns = turn_gae(parents, rewards, values, gamma=gamma, lam=lam)
    assert turns == pytest.approx(token_gae(rewards, values, [1] * len(chain), gamma=gamma, lam=lam))
    both = bilevel_gae(
        rewards, [[value] for value in values], gamma_turn=gamma, lam_turn=lam, gamma_token=0.3, lam_token=0.3
    )
    assert [advantage for (advantage,) in both] == pytest.approx(turns)


@given(chain=_chain, gamma=st.floats(0, 1))
def test_with_lambda_one_it_is_the_return_less_the_value(chain, gamma):
    rewards, values = [reward for reward, _ in chain], [value for _, value in chain]
    returns, later = [0.0] * len(chain), 0.0
    for t in reversed(range(len(chain))):
        later = returns[t] = rewards[t] + gamma * later
    found = turn_gae([None, *range(len(chain) - 1)], rewards, values, gamma=gamma, lam=1.0)
    assert found == pytest.approx([g - v for g, v in zip(returns, values, strict=True)], abs=1e-9)


@given(values=st.lists(st.lists(_numbers, min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_last_token_of_a_turn_has_the_turns_advantage(values):
    rewards = [1.0] * len(values)
    found = bilevel_gae(rewards, values, gamma_turn=0.9, lam_turn=0.8, gamma_token=1.0, lam_token=0.5)
    parents = [None, *range(len(values) - 1)]
    turns = turn_gae(parents, rewards, [own[-1] for own in values], gamma=0.9, lam=0.8)
    assert [own[-1] for own in found] == turns
