import pytest

from lightning_trainer.samples.credit.schemes.equal_shares import EqualShares


def test_the_reward_of_the_attempt_is_divided_among_all_of_its_calls_by_hand(team, values):
    """R = 1 over 4 calls of both agents: 0.25 each; the critic's own 0.5 over its one call: 0.25 + 0.5."""
    attempt = team(
        "a1",
        1.0,
        own={"critic": 0.5},
        solver=[("1", None, None), ("2", None, "1"), ("3", None, "2")],
        critic=[("4", None, None)],
    )
    assert values(EqualShares(), attempt) == pytest.approx({"1": 0.25, "2": 0.25, "3": 0.25, "4": 0.75})


def test_an_attempt_is_one_row_for_each_agent(team):
    attempt = team("a1", 1.0, solver=[("1", None, None), ("2", None, "1")], critic=[("3", None, None)])
    rows = [[credit.row_id for credit in credits_T] for credits_T in EqualShares()(attempt)]
    assert rows == [["a1/solver", "a1/solver"], ["a1/critic"]]


def test_a_missing_reward_leaves_no_shares(team, values):
    attempts = team("a1", 1.0, solver=[("1", None, None)]) + team("a2", None, solver=[("2", None, None)])
    assert values(EqualShares(), attempts) == {"1": 1.0, "2": None}
    assert values(EqualShares(), team("a3", None, solver=[("3", 1.0, None)])) == {"3": None}
