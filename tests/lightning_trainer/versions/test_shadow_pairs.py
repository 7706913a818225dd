"""A candidate beside the live version is decided on by differences within pairs, each of the same rollout."""

import random

import pytest

from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.versions.live_rollouts import LiveRollout, Usual, judge_shadow
from lightning_trainer.versions.sequential import Decision

CONFIG = CanaryConfig(shadow=True, tolerance=0.1, max_rollouts=200)


def rollout(reward, *, refused=False, tokens=10):
    return LiveRollout(1, reward, False, False, refused, tokens, 1.0)


def decided(pairs, config=CONFIG):
    return judge_shadow(pairs, config, Usual(tokens=100))


def test_the_numbers_by_hand():
    found = decided([(rollout(1.0), rollout(0.5)), (rollout(0.5), rollout(0.0)), (rollout(None), rollout(1.0))])
    evidence = found.evidence()
    assert (evidence["rollouts"], evidence["rewards"], evidence["means"]) == ([3, 3], [2, 2], [0.75, 0.25])
    assert found.decision is Decision.GOING_ON


def test_how_hard_a_rollout_is_does_not_matter():
    """The candidate earns 0.2 more in each: rewards from 0 to 0.8 by chance hide that, differences do not."""
    draw = random.Random(0)
    pairs = [(rollout(live + 0.2), rollout(live)) for live in (draw.random() * 0.8 for _ in range(120))]
    assert decided(pairs).decision is Decision.PROMOTED
    found = decided([(old, new) for new, old in pairs])
    assert found.decision is Decision.REFUSED
    assert found.reason is not None
    assert found.reason.startswith("its canary is worse: mean 0.4")


def test_nothing_is_certain_of_equals_that_differ_by_chance():
    draw = random.Random(1)
    outcomes = [(float(draw.random() < 0.5), float(draw.random() < 0.5)) for _ in range(200)]
    found = decided([(rollout(new), rollout(old)) for new, old in outcomes])
    assert found.decision is Decision.STOPPED
    assert found.reason is not None
    assert found.reason.startswith("its canary is undecided after max_rollouts = 200")


@pytest.mark.parametrize(("harm", "said"), [({"refused": True}, "refusals"), ({"tokens": 1000}, "long answers")])
def test_harm_is_refused_whatever_it_earns(harm, said):
    found = decided([(rollout(1.0, **harm), rollout(1.0)) for _ in range(60)])
    assert found.decision is Decision.REFUSED
    assert found.reason == f"its canary has {said} in 100% of its rollouts, the live version in 0%"
