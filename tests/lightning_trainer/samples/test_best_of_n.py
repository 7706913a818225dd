"""Best of n and best against worst: who is imitated, what becomes of the others, and that no token goes missing."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.best_of_n import AVOIDED, IMITATED
from lightning_trainer.samples.transitions.reasons import Reason

PROMPT = (1, 2, 3)


@pytest.fixture(scope="session")
def build(make_call, make_attempt, make_evaluation, make_policy):
    """Build the step of one group, with an attempt of one call for every reward (None: nothing scored it)."""

    def make(algorithm, rewards, **changes):
        names = [f"a{number}" for number in range(len(rewards))]
        calls = [
            make_call(f"s{name}", PROMPT, range(10, 11 + number), attempt_id=name, **changes)
            for number, name in enumerate(names)
        ]
        evaluations = [make_evaluation(r, name) for r, name in zip(rewards, names, strict=True) if r is not None]
        policy = make_policy(algorithm=algorithm)
        return build_batch(calls, [make_attempt(name) for name in names], evaluations, policy, step=1)

    return make


def _call_outcomes(build):
    tokens = Counter()
    for row in build.ledger:
        tokens[f"{row.outcome}/{row.reason}"] += row.tokens
    return dict(tokens)


def _credits(build):
    return {segment.transition_id: segment.credit for sample in build.batch.samples for segment in sample.segments}


def test_the_best_attempt_of_a_group_is_the_demonstration(build):
    found = build("sft", [0.0, 1.0, 0.5])
    assert _credits(found) == {"sa1/0": IMITATED}
    (sample,) = found.batch.samples
    assert (sample.token_ids, sample.loss_mask) == ((*PROMPT, 10, 11), (0, 0, 0, 1, 1))
    assert _call_outcomes(found) == {"trained/sampled": 2, "masked/not_picked": 4}


def test_the_best_is_set_against_the_worst(build):
    found = build("dpo", [0.5, 0.0, 1.0])
    assert _credits(found) == {"sa2/0": IMITATED, "sa1/0": AVOIDED}
    assert _call_outcomes(found) == {"trained/sampled": 5, "masked/not_picked": 1}


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_group_in_which_all_earned_the_same_has_no_best(build, algorithm):
    found = build(algorithm, [1.0, 1.0])
    assert found.batch is None
    assert _call_outcomes(found) == {"masked/zero_variance_group": 3}


def test_of_equal_ones_the_first_is_shown_where_groups_without_spread_are_kept(build):
    found = build({"preset": "sft", "drop_zero_variance_groups": False}, [1.0, 1.0])
    assert _credits(found) == {"sa0/0": IMITATED}


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
@pytest.mark.parametrize("rewards", [((1.0, -1.0), (-1.0, 1.0)), ((0.0, 1.0), (0.0, 1.0))])
def test_agents_that_earn_differently_do_not_make_one_attempt_better_than_another(
    make_call, make_attempt, make_evaluation, make_policy, algorithm, rewards
):
    agents = ("white", "black")
    calls = [
        make_call(f"{name}{one}", (1, n), attempt_id=name, agent=one) for name in "xy" for n, one in enumerate(agents)
    ]
    evaluations = [
        make_evaluation(reward, name, agent=one)
        for name, own in zip("xy", rewards, strict=True)
        for one, reward in zip(agents, own, strict=True)
    ]
    policy = make_policy(agents=agents, algorithm=algorithm)
    found = build_batch(calls, [make_attempt("x"), make_attempt("y")], evaluations, policy, step=1)
    assert found.batch is None
    assert found.groups[0].verdict is Reason.ZERO_VARIANCE_GROUP


def test_a_best_attempt_that_is_not_good_enough_is_not_shown(build):
    found = build({"preset": "sft", "sft": {"min_reward": 0.8}}, [0.0, 0.5])
    assert found.batch is None
    assert found.groups[0].verdict is Reason.LOW_REWARD
    assert _call_outcomes(found) == {"dropped/low_reward": 3}


def test_what_is_imitated_is_learned_at_the_models_own_temperature(build):
    found = build("sft", [0.0, 1.0], temperature=0.5)
    assert [sample.temperature for sample in found.batch.samples] == [1.0]


def test_an_attempt_that_nothing_scored_is_neither_best_nor_worst(build):
    found = build("dpo", [None, 0.25, 0.5])
    assert _credits(found) == {"sa2/0": IMITATED, "sa1/0": AVOIDED}
    assert _call_outcomes(found)["dropped/no_reward"] == 1


def test_all_calls_of_the_attempt_are_shown(make_call, make_attempt, make_evaluation, make_policy):
    calls = [
        make_call("s1", PROMPT, (10, 11)),
        make_call("s2", (*PROMPT, 10, 11, 4), (12,), start=10),
        make_call("s3", PROMPT, (13,), attempt_id="a2"),
    ]
    evaluations = [make_evaluation(1.0, "a1"), make_evaluation(0.0, "a2")]
    policy = make_policy(algorithm="dpo", samples="tree")
    found = build_batch(calls, [make_attempt("a1"), make_attempt("a2")], evaluations, policy, step=1)
    assert _credits(found) == {"s1/0": IMITATED, "s2/0": IMITATED, "s3/0": AVOIDED}
    assert found.batch is not None
    assert sorted(sample.loss_mask for sample in found.batch.samples) == [(0, 0, 0, 1), (0, 0, 0, 1, 1, 0, 1)]


@given(st.lists(st.none() | st.floats(-2, 2, width=16), min_size=1, max_size=6), st.sampled_from(["sft", "dpo"]))
def test_every_token_is_accounted_for_and_nobody_better_is_passed_over(build, rewards, algorithm):
    found = build(algorithm, rewards)
    assert sum(_call_outcomes(found).values()) == sum(range(1, len(rewards) + 1))
    known = [reward for reward in rewards if reward is not None]
    if found.batch is None:
        assert len(known) < 2 or max(known) - min(known) <= 1e-8
        return
    earned = {credit: rewards[int(name[2:].split("/")[0])] for name, credit in _credits(found).items()}
    assert earned.pop(IMITATED) == max(known)
    assert earned == ({AVOIDED: min(known)} if algorithm == "dpo" else {})
