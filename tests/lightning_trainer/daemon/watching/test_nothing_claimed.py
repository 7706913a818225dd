"""A policy that claims nobody who calls is told so, with the names that were seen."""

from typing import Any

import pytest

from lightning_trainer.daemon.watching.selection_watch import nothing_claimed


def report(*agents: tuple[str | None, str | None, int]) -> Any:
    rows = [{"agent": agent, "policy": policy, "calls": calls} for agent, policy, calls in agents]
    return {"policies": ["math"], "agents": rows}


def test_the_sentence_names_both_sides(make_policy):
    sentence = nothing_claimed(report(("Solver", None, 3), (None, None, 2), ("tool", None, 0)), make_policy())
    assert sentence is not None
    assert "policy 'math' claims 'solver', and seen were 'Solver', calls without a name;" in sentence


@pytest.mark.parametrize(
    "seen", [(), (("solver", "math", 1), ("other", None, 5)), (("Solver", None, 0),)], ids=["none", "one", "no calls"]
)
def test_nothing_is_said_when_one_is_claimed_or_nobody_calls(seen, make_policy):
    assert nothing_claimed(report(*seen), make_policy()) is None
