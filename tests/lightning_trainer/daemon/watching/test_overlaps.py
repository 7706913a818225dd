"""Patterns of two policies that overlap are said at the start, and nothing is said where they do not."""

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.engine import OwnEngineConfig
from lightning_trainer.config.policies.updates import LoraConfig
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


def test_adapters_of_one_model_share_an_engine_whose_settings_are_alike():
    adapters = [policy.model_copy(update={"lora": LoraConfig()}) for policy in policies(("x",), ("y",), ("z",))]
    one, other = adapters[:2]
    own = adapters[2].model_copy(update={"engine": OwnEngineConfig(max_model_len=512)})
    assert engine_groups([one, other, own]) == ((one, other), (own,))
