import pytest

from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.schemes.causal import Causal, graph_returns


def test_a_chain_is_the_discounted_return_by_hand():
    """G_3 = 4, G_2 = 2 + 0.5 * 4 = 4, G_1 = 1 + 0.5 * 4 = 3."""
    assert graph_returns([[], [0], [1]], [1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]


def test_what_a_call_started_in_parallel_counts_in_full_and_a_join_is_shared_by_hand():
    """0 starts 1 and 2, whose answers meet in 3. G_3 = 8, half of it to each: G_1 = 1 + 4, G_2 = 2 + 4, G_0 = 11."""
    assert graph_returns([[], [0], [0], [1, 2]], [0.0, 1.0, 2.0, 8.0], 1.0) == [11.0, 5.0, 6.0, 8.0]
    assert graph_returns([[], [0], [0], [1, 2]], [0.0, 1.0, 2.0, 8.0], 0.5) == [3.5, 3.0, 4.0, 8.0]


def test_a_missing_reward_is_missing_for_all_that_led_to_it_and_for_nothing_else():
    assert graph_returns([[], [0], [0], [1]], [0.0, None, 2.0, 8.0], 1.0) == [None, None, 2.0, 8.0]


def test_a_circle_is_refused():
    with pytest.raises(CreditAssignmentError, match="run in a circle"):
        graph_returns([[1], [0]], [1.0, 1.0], 1.0)


def test_a_chain_of_100_000_needs_no_recursion():
    causes = [[], *([node] for node in range(99_999))]
    assert graph_returns(causes, [1.0] * 100_000, 1.0)[0] == 100_000


@pytest.fixture
def orchestra(make_transition, make_trajectory, make_attempt):
    """The boss calls two workers at once and reads both answers: b1 -> (x1 -> x2, y1) -> b2."""
    from dataclasses import replace

    def orchestra(reward=None, x2=None, y1=None, other=None, own=None):
        boss = make_trajectory(
            make_transition("b1", agent="boss", reward=other),
            make_transition("b2", agent="boss", reward=other, parent_id="b1", causes=("x2", "y1")),
            reward=reward,
        )
        worker = make_trajectory(
            make_transition("x1", agent="worker", reward=other, causes=("b1",)),
            make_transition("x2", agent="worker", reward=x2, parent_id="x1", causes=("x1",)),
            make_transition("y1", agent="worker", reward=y1, causes=("b1",)),
            reward=reward,
        )
        return [replace(boss, agent="boss"), replace(worker, agent="worker", own_reward=own)]

    return orchestra


def test_the_outcome_flows_back_through_all_agents_by_hand(orchestra, values):
    """R = 1 at b2; 0.5 to each branch; x1 -> x2 adds an edge. With gamma = 0.5: b2 = 1, x2 = y1 = 0.25, x1 = 0.125,
    b1 = 0.5 * (0.125 + 0.25) = 0.1875."""
    assert values(Causal(gamma=0.5), orchestra(1.0)) == {"b1": 0.1875, "b2": 1.0, "x1": 0.125, "x2": 0.25, "y1": 0.25}


def test_a_branch_does_not_see_what_its_sibling_earned(orchestra, values):
    before, after = (values(Causal(), orchestra(1.0, x2=0.0, y1=earned, other=0.0)) for earned in (0.0, 64.0))
    assert {name for name in before if before[name] != after[name]} == {"y1", "b1"}


def test_an_agents_own_reward_is_what_its_last_calls_led_to(orchestra, values):
    """The worker's own 2 is shared by x2 and y1, the last calls of its branches; b2 came later and has none of it."""
    assert values(Causal(), orchestra(own=2.0)) == {"b1": 2.0, "b2": 0.0, "x1": 1.0, "x2": 1.0, "y1": 1.0}


def test_without_causes_it_follows_parent_edges(team, values):
    attempt = team("a1", 6.0, solver=[("1", None, None), ("2", None, "1"), ("3", None, "1")])
    assert values(Causal(), attempt) == {"1": 6.0, "2": 3.0, "3": 3.0}


def test_without_any_reward_everything_is_missing(orchestra, values):
    assert set(values(Causal(), orchestra()).values()) == {None}
