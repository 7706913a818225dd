"""Patterns of two policies that overlap are said at the start, and nothing is said where they do not."""

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.hardware.dealing import engine_groups
from lightning_trainer.daemon.watching.selection_watch import overlaps


def policies(*agents: tuple[str, ...]) -> list[PolicyConfig]:
    return [
        PolicyConfig(name=name, agents=each, model="random:tiny") for name, each in zip("abc", agents, strict=False)
    ]


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ((("planner",), ("worker*",)), []),
        ((("x*",), ("X*",)), []),
        ((("*",), ("worker*", "planner")), ["agents 'worker*', 'planner' of policy 'b' are claimed by policy 'a'"]),
        ((("fixer*",), ("*",)), ["policy 'b' matches 'fixer*' as well, which policy 'a' claims"]),
        ((("same",), ("same",)), ["agents 'same' of policy 'b' are claimed by policy 'a'"]),
    ],
)
def test_the_sentences_name_patterns_and_policies(agents, said):
    found = overlaps(policies(*agents))
    assert set(found) == ({"b"} if said else set())
    assert [any(part in sentence for sentence in found.get("b", [])) for part in said] == [True] * len(said)
    assert len(found.get("b", [])) == len(said)


def test_full_weights_have_an_engine_each():
    one, other = policies(("x",), ("y",))
    assert engine_groups([one, other]) == ((one,), (other,))
