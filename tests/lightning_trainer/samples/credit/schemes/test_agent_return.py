import pytest

from lightning_trainer.samples.credit.schemes.agent_return import AgentReturn


@pytest.fixture
def attempt(team):
    return team(
        "a1",
        8.0,
        own={"solver": 4.0, "critic": 1.0},
        solver=[("s1", 1.0, None), ("s2", 2.0, "s1")],
        critic=[("c1", 0.0, None)],
    )


def test_an_agent_sees_what_it_was_given_itself_by_hand(attempt, values):
    """solver: G_2 = 2 + 4 = 6, G_1 = 1 + 0.5 * 6 = 4. critic: 0 + 1 = 1. The attempt's 8 counts for nobody."""
    assert values(AgentReturn(gamma=0.5), attempt) == {"s1": 4.0, "s2": 6.0, "c1": 1.0}


def test_the_teams_reward_counts_as_much_as_it_is_given_weight(attempt, values):
    """With w = 0.25 the end is worth 2 more: G_2 = 8, G_1 = 1 + 0.5 * 8 = 5, critic 3."""
    assert values(AgentReturn(gamma=0.5, team_weight=0.25), attempt) == {"s1": 5.0, "s2": 8.0, "c1": 3.0}


def test_an_agent_that_was_given_nothing_has_no_credit_unless_the_team_counts(team, values):
    attempt = team("a1", 8.0, solver=[("s1", 1.0, None)], critic=[("c1", None, None)])
    assert values(AgentReturn(), attempt) == {"s1": 1.0, "c1": None}
    assert values(AgentReturn(team_weight=1.0), attempt) == {"s1": 9.0, "c1": 8.0}


def test_a_missing_team_reward_matters_only_where_it_counts(team, values):
    attempts = team("a1", 1.0, solver=[("1", 1.0, None)]) + team("a2", None, solver=[("2", 1.0, None)])
    assert values(AgentReturn(), attempts) == {"1": 1.0, "2": 1.0}
    assert values(AgentReturn(team_weight=1.0), attempts) == {"1": 2.0, "2": None}
