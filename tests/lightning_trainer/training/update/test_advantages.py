"""Advantages are the published formulas over rows, and come back to the tokens that earned them."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.sampling import support_of
from lightning_trainer.types import Media

pytestmark = pytest.mark.verl


@pytest.fixture
def advantages():
    from lightning_trainer.training.update.estimation.advantages import token_advantages

    def of(samples, estimator="grpo", *, normalize_by_std=True):
        return token_advantages(samples, estimator, AlgorithmConfig(normalize_by_std=normalize_by_std))

    return of


@pytest.fixture
def group(sample):
    def of(*credits, name="g", baseline=0.25):
        return [
            replace(
                sample(f"{name}{i}", [1, 2, 3, 4], [0, 1, 0, 1], group=name, credit=credit),
                baseline=baseline,
            )
            for i, credit in enumerate(credits)
        ]

    return of


def test_grpo_is_the_deepseekmath_formula(group, advantages):
    """(r - mean) / std of the group (DeepSeekMath, section 4.1.1), std of the sample: verl divides by n - 1."""
    found = advantages(group(1.0, 0.0, 0.0, 0.5))
    mean = 1.5 / 4
    std = math.sqrt(((1 - mean) ** 2 + 2 * mean**2 + (0.5 - mean) ** 2) / 3)
    for name, reward in zip(("g0", "g1", "g2", "g3"), (1.0, 0.0, 0.0, 0.5), strict=True):
        expected = (reward - mean) / std
        assert found[name] == pytest.approx((0.0, expected, 0.0, expected), abs=1e-5)


def test_without_the_standard_deviation_it_is_dr_grpo(group, advantages):
    found = advantages(group(1.0, 0.0, 0.0, 0.5), normalize_by_std=False)
    assert found["g0"] == pytest.approx((0.0, 0.625, 0.0, 0.625))
    assert found["g3"] == pytest.approx((0.0, 0.125, 0.0, 0.125))


def test_rloo_compares_with_the_mean_of_the_others(group, advantages):
    """Ahmadian et al. 2024, equation 8."""
    found = advantages(group(1.0, 0.0, 0.5), "rloo")
    assert found["g0"] == pytest.approx((0.0, 1.0 - 0.25, 0.0, 0.75), abs=1e-5)
    assert found["g1"] == pytest.approx((0.0, 0.0 - 0.75, 0.0, -0.75), abs=1e-5)


def test_groups_do_not_see_each_other(group, advantages):
    alone = advantages(group(1.0, 0.0))
    together = advantages([*group(1.0, 0.0), *group(5.0, 5.0, 6.0, name="h")])
    assert alone["g0"] == together["g0"]


def test_an_attempt_in_two_samples_is_one_row(sample, advantages):
    first = sample("a", [1, 2, 3], [0, 1, 1], group="g", credit=1.0)
    forked = replace(sample("a2", [1, 2, 9, 9, 9], [0, 0, 0, 1, 1], group="g", credit=1.0), attempt_id=first.attempt_id)
    forked = replace(forked, segments=tuple(replace(s, row_id=first.segments[0].row_id) for s in forked.segments))
    other = sample("b", [1, 5], [0, 1], group="g", credit=0.0)
    found = advantages([first, forked, other])
    # Two rows with rewards 1 and 0: had the fork been a row of its own, the mean would be 2/3.
    expected = 0.5 / math.sqrt(0.5)
    assert found["a"] == pytest.approx((0.0, expected, expected), abs=1e-5)
    assert found["a2"] == pytest.approx((0.0, 0.0, 0.0, expected, expected), abs=1e-5)
    assert found["b"] == pytest.approx((0.0, -expected), abs=1e-5)


def test_calls_that_are_rows_have_advantages_of_their_own(sample, advantages):
    samples = [sample(name, [1, 2, 3, 4], [0, 1, 0, 1], group="g", credit=0.0) for name in ("a", "b")]
    credits = {("a", 1): 4.0, ("a", 3): 2.0, ("b", 1): 1.0, ("b", 3): 1.0}
    samples = [
        replace(
            one,
            segments=tuple(
                replace(s, credit=credits[one.sample_id, s.start], row_id=s.transition_id) for s in one.segments
            ),
        )
        for one in samples
    ]
    found = advantages(samples, normalize_by_std=False)
    assert found["a"] == pytest.approx((0.0, 2.0, 0.0, 0.0))
    assert found["b"] == pytest.approx((0.0, -1.0, 0.0, -1.0))


def test_a_group_of_one_attempt_is_refused(group, advantages):
    with pytest.raises(TrainingError, match="group lonely holds one attempt"):
        advantages([*group(1.0, 0.0), *group(1.0, name="lonely")])


def test_a_transition_without_credit_is_refused(group, advantages):
    with pytest.raises(TrainingError, match="has the credit None"):
        advantages(group(1.0, None))


def test_a_row_with_two_credits_is_refused(sample, advantages):
    one = sample("a", [1, 2, 3, 4], [0, 1, 0, 1], group="g", credit=1.0)
    split = replace(one, segments=(one.segments[0], replace(one.segments[1], credit=2.0)))
    with pytest.raises(TrainingError, match=r"credits 1\.0 and 2\.0"):
        advantages([split, sample("b", [1, 2], [0, 1], group="g", credit=1.0)])


def test_an_estimator_that_needs_more_is_refused(group, advantages):
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    @register_adv_est("of-someone-else")
    def _estimator(token_level_rewards, response_mask, reward_baselines, tea_leaves): ...

    try:
        with pytest.raises(TrainingError, match=r"needs reward_baselines, tea_leaves, which .* does not have"):
            advantages(group(1.0, 0.0), "of-someone-else")
    finally:
        del ADV_ESTIMATOR_REGISTRY["of-someone-else"]


def test_remax_takes_off_what_the_greedy_attempt_of_the_group_earned(group, advantages):
    """Li et al., arXiv 2310.10505, equation 4: A = r(x, a) - r(x, greedy a); here 1 - 0.25 and 0 - 0.25."""
    found = advantages([*group(1.0, 0.0), *group(1.0, 1.0, name="h", baseline=0.5)], "remax")
    assert found["g0"] == pytest.approx((0.0, 0.75, 0.0, 0.75))
    assert found["g1"] == pytest.approx((0.0, -0.25, 0.0, -0.25))
    assert found["h0"] == found["h1"] == pytest.approx((0.0, 0.5, 0.0, 0.5))


@given(
    rewards=st.lists(st.floats(-10, 10), min_size=2, max_size=6),
    baseline=st.floats(-10, 10),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_remax_is_verls(rewards, baseline, group, advantages):
    import torch
    from verl.trainer.ppo.core_algos import compute_remax_outcome_advantage

    verls, _ = compute_remax_outcome_advantage(
        token_level_rewards=torch.tensor([[0.0, reward] for reward in rewards], dtype=torch.float64),
        reward_baselines=torch.full((len(rewards),), baseline, dtype=torch.float64),
        response_mask=torch.ones(len(rewards), 2, dtype=torch.float64),
    )
    found = advantages(group(*rewards, baseline=baseline), "remax")
    ours = [[found[f"g{i}"][1], found[f"g{i}"][3]] for i in range(len(rewards))]
    assert torch.allclose(torch.tensor(ours, dtype=torch.float64), verls, rtol=0.0, atol=1e-9)


def test_remax_without_a_baseline_is_refused(group, advantages):
    with pytest.raises(TrainingError, match="group g has no baseline"):
        advantages(group(1.0, 0.0, baseline=None), "remax")


def test_an_unknown_estimator_is_refused_with_the_known_ones(group, advantages):
    with pytest.raises(TrainingError, match=r"unknown advantage estimator 'grop'.*grpo"):
        advantages(group(1.0, 0.0), "grop")


def test_every_usable_estimator_gives_finite_values_on_trained_tokens_alone(group, advantages):
    from lightning_trainer.config.policies.estimators import ESTIMATORS
    from lightning_trainer.training.update.estimation.advantages import usable_estimators

    names = usable_estimators()
    assert {"grpo", "rloo", "reinforce_plus_plus", "opo"} <= set(names)
    for name in (name for name in names if ESTIMATORS[name].needs in (None, "baseline")):
        for values in advantages(group(1.0, 0.0, 0.5), name).values():
            assert values[0] == values[2] == 0.0
            assert all(math.isfinite(value) for value in values)


def test_credits_that_are_advantages_stay_what_they_are(group, advantages):
    found = advantages(group(0.75, -0.25), "credit")
    assert found == {"g0": (0.0, 0.75, 0.0, 0.75), "g1": (0.0, -0.25, 0.0, -0.25)}


def test_agents_and_turns_are_compared_with_their_own_kind(sample, advantages):
    """Group means: solver 0.5, critic 5.5, and at the solver's second turn 2."""
    samples = [
        replace(
            sample(f"{agent}{turn}{name}", [1, 2], [0, 1], group="g", credit=credit),
            agent=agent,
            attempt_id=name,
        )
        for agent, turn, name, credit in (
            ("solver", "", "a", 1.0),
            ("solver", "", "b", 0.0),
            ("critic", "", "a", 5.0),
            ("critic", "", "b", 6.0),
            ("solver", "turn 1", "a", 3.0),
            ("solver", "turn 1", "b", 1.0),
        )
    ]
    samples = [
        replace(one, segments=(replace(one.segments[0], peers="turn 1" if "turn" in one.sample_id else ""),))
        for one in samples
    ]
    found = advantages(samples, normalize_by_std=False)
    assert [values[1] for values in found.values()] == pytest.approx([0.5, -0.5, -0.5, 0.5, 1.0, -1.0])


def test_a_turn_of_one_attempt_alone_is_refused(sample, advantages):
    """verl would give a row without peers its whole reward as advantage."""
    samples = [sample(name, [1, 2], [0, 1], group="g", credit=1.0) for name in ("a", "b")]
    samples[1] = replace(samples[1], segments=(replace(samples[1].segments[0], peers="turn 1"),))
    with pytest.raises(TrainingError, match=r"group g holds one attempt \(attempt-a\) of agent agent; "):
        advantages(samples)


def test_the_contract_is_of_the_estimators_that_verl_has():
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from lightning_trainer.config.policies.estimators import ESTIMATORS
    from lightning_trainer.training.update.estimation.advantages import usable_estimators

    assert set(ESTIMATORS) - {"credit"} == {str(name) for name in ADV_ESTIMATOR_REGISTRY}
    assert set(ESTIMATORS) - {"credit"} == set(usable_estimators())


def test_what_says_that_it_compares_groups_does_not_see_the_others(group, advantages):
    from lightning_trainer.config.policies.estimators import ESTIMATORS

    for name, estimator in ESTIMATORS.items():
        if estimator.needs not in (None, "baseline") or name in ("reinforce_plus_plus_baseline", "gdpo", "gpg"):
            continue  # those also scale or whiten over the batch
        alone, together = (
            advantages(group(1.0, 0.0), name),
            advantages([*group(1.0, 0.0), *group(5.0, 5.0, 6.0, name="h")], name),
        )
        independent = together["g0"] == pytest.approx(alone["g0"], abs=1e-6)
        assert independent == (estimator.compares != "batch"), name


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # rewards 1, 0 and 0.5, two tokens each; mean 0.5
        ("rloo_vectorized", [0.75, -0.75, 0.0]),  # 3/2 * (r - mean)
        ("opo", [0.5, -0.5, 0.0]),  # equal lengths: the plain mean
        ("gpg", [0.75, -0.75, 0.0]),  # alpha = 3 rows / 2 that are not 0
        ("grpo_passk", [1.0, 0.0, 0.0]),  # (best - second) / std, 0.5 / 0.5
        # whitened over 6 tokens: r - mean = +-0.5 and 0 twice, variance 1 / 5
        ("reinforce_plus_plus_baseline", [0.5 / math.sqrt(0.2), -0.5 / math.sqrt(0.2), 0.0]),
        ("reinforce_plus_plus", [0.5 / math.sqrt(0.2), -0.5 / math.sqrt(0.2), 0.0]),
    ],
)
def test_the_other_group_estimators_by_hand(estimator, expected, group, advantages):
    found = advantages(group(1.0, 0.0, 0.5), estimator)
    assert [found[name][1] for name in ("g0", "g1", "g2")] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Rewards 1, 0 and 0.5 with 1, 2 and 3 sampled tokens.
        # OPO (arXiv 2505.23585): b = (1 * 1 + 2 * 0 + 3 * 0.5) / 6 = 2.5 / 6
        ("opo", [1 - 2.5 / 6, -2.5 / 6, 0.5 - 2.5 / 6]),
        # GPG (arXiv 2504.02546): r - mean, times 3 rows over the 2 that are not 0; lengths have no effect
        ("gpg", [0.75, -0.75, 0.0]),
        # REINFORCE++-baseline (arXiv 2501.03262): r - mean = 0.5, -0.5 twice and 0 three times, so over the tokens
        # a mean of -0.5 / 6 and a variance of (0.75 - 0.25 / 6) / 5
        (
            "reinforce_plus_plus_baseline",
            [(lead + 0.5 / 6) / math.sqrt((0.75 - 0.25 / 6) / 5) for lead in (0.5, -0.5, 0.0)],
        ),
    ],
)
def test_lengths_count_where_the_paper_says_so_by_hand(estimator, expected, sample, advantages):
    samples = [
        sample(name, [1] * (1 + length), [0] + [1] * length, group="g", credit=credit)
        for name, length, credit in (("a", 1, 1.0), ("b", 2, 0.0), ("c", 3, 0.5))
    ]
    found = advantages(samples, estimator)
    for one, value in zip(samples, expected, strict=True):
        assert found[one.sample_id][1:] == pytest.approx((value,) * (len(one.token_ids) - 1), abs=1e-5)


_rows = st.lists(st.tuples(st.floats(-4, 4, width=16), st.integers(1, 4)), min_size=2, max_size=4)


@given(groups=st.lists(_rows, min_size=1, max_size=3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_estimator_of_rewards_is_verls_given_the_same_rows(groups, sample, advantages):
    """verl is given one row an attempt, padded at the end, with its reward on its last token."""
    import numpy as np
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from lightning_trainer.config.policies.estimators import CREDIT, ESTIMATORS

    rows = [(f"g{g}", i, reward, length) for g, own in enumerate(groups) for i, (reward, length) in enumerate(own)]
    samples = [
        sample(f"{g}-{i}", [1] * (1 + length), [0] + [1] * length, group=g, credit=reward)
        for g, i, reward, length in rows
    ]
    mask, rewards = torch.zeros(len(rows), 4, dtype=torch.float64), torch.zeros(len(rows), 4, dtype=torch.float64)
    for place, (_, _, reward, length) in enumerate(rows):
        mask[place, :length], rewards[place, length - 1] = 1.0, reward
    index = np.array([g for g, *_ in rows], dtype=object)
    for name in ESTIMATORS.keys() - {CREDIT, "gdpo"}:  # gdpo's rewards come by name, one tensor each
        if ESTIMATORS[name].needs is not None:
            continue
        verls, _ = get_adv_estimator_fn(name)(
            token_level_rewards=rewards.clone(), response_mask=mask, index=index, config=AlgoConfig()
        )
        found = advantages(samples, name)
        for place, one in enumerate(samples):
            length = len(one.token_ids) - 1
            assert found[one.sample_id][1:] == pytest.approx(verls[place, :length].tolist(), rel=1e-6, abs=1e-6), name


def test_token_gae_is_verls_before_whitening():
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.utils.torch_functional import masked_whiten

    from lightning_trainer.samples.credit.schemes.critic.gae import token_gae

    mask = [0, 1, 1, 0, 0, 1, 1, 1, 0]
    rewards = [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0]
    values = [0.3, -0.2, 0.7, 5.0, 5.0, 0.1, -0.4, 0.9, 5.0]
    row = [torch.tensor([numbers], dtype=torch.float64) for numbers in (rewards, values, mask)]
    verls, _ = get_adv_estimator_fn("gae")(
        token_level_rewards=row[0], values=row[1], response_mask=row[2], gamma=0.9, lam=0.8
    )
    ours = torch.tensor([token_gae(rewards, values, mask, gamma=0.9, lam=0.8)], dtype=torch.float64)
    assert (masked_whiten(ours, row[2]) * row[2])[0].tolist() == pytest.approx((verls * row[2])[0].tolist(), abs=1e-6)


def test_gigpos_episode_term_is_verls_grpo(group, advantages):
    from lightning_trainer.samples.credit.schemes.gigpo import relative

    found = advantages(group(1.0, 0.0, 0.0, 0.5))
    assert [found[f"g{i}"][1] for i in range(4)] == pytest.approx(
        relative([1.0, 0.0, 0.0, 0.5], normalize_by_std=True), abs=1e-6
    )


def test_a_segment_of_another_agent_is_compared_with_its_own(sample, advantages):
    """Two attempts, each one sequence of a planner's (1, 0) and a worker's credits (5, 7): means 0.5 and 6."""
    samples = []
    for index, (planned, worked) in enumerate(((1.0, 5.0), (0.0, 7.0))):
        one = sample(f"s{index}", [1, 2, 3, 4], [0, 1, 0, 1], group="g", credit=0.0)
        plan, work = one.segments
        segments = (
            replace(plan, credit=planned, row_id=f"plan{index}", agent="planner"),
            replace(work, credit=worked, row_id=f"work{index}"),
        )
        samples.append(replace(one, segments=segments))
    found = advantages(samples, normalize_by_std=False)
    assert found["s0"] == pytest.approx((0.0, 0.5, 0.0, -1.0))
    assert found["s1"] == pytest.approx((0.0, -0.5, 0.0, 1.0))


def test_the_update_engine_refuses_pictures(sample):
    from lightning_trainer.training.update.batch.tensors import training_tensors

    shown = replace(sample("s", [1, 2], [0, 1], group="g", credit=0.0), media=(Media("image", "https://host/cat.png"),))
    with pytest.raises(TrainingError, match="holds image"):
        training_tensors([shown], {"advantages": {"s": [0.0, 1.0]}})


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus", "credit"])
def test_tokens_without_a_choice_are_no_part_of_their_row(group, advantages, estimator):
    """A row with holes is the row without these tokens, wherever its reward is met."""
    whole = [
        replace(one, segments=(replace(one.segments[1], row_id=one.attempt_id),), loss_mask=(0, 0, 0, 1))
        for one in group(1.0, 0.0, 0.5)
    ]
    holes = [
        replace(one, segments=(replace(one.segments[0], start=1, end=4, support=support_of(9, [[2], [3], None])),))
        for one in whole
    ]
    expected, found = advantages(whole, estimator), advantages(holes, estimator)
    assert found == {name: pytest.approx(row) for name, row in expected.items()}
    assert all(row[:3] == (0.0, 0.0, 0.0) for row in found.values())


def test_a_row_is_in_the_order_of_sampling_and_not_of_the_batch(sample):
    """A side call between two turns, whose sample comes first. With gamma 1 and lambda 0 what the critic should have
    said is what it says at the next token, and at the last one the reward."""
    from lightning_trainer.training.update.estimation.advantages import estimate

    side = sample("side", [1, 2], [0, 1], group="g", credit=1.0)
    turns = sample("turns", [1, 2, 3, 4], [0, 1, 0, 1], group="g", credit=1.0)
    other = sample("other", [1, 2], [0, 1], group="g", credit=0.0)
    of_row = {"attempt_id": "a", "row_id": "a"}
    side = replace(side, segments=(replace(side.segments[0], order=1, **of_row),))
    segments = (replace(one, order=2 * place, **of_row) for place, one in enumerate(turns.segments))
    turns = replace(turns, segments=tuple(segments))
    values = {"side": [9.0, 0.5], "turns": [9.0, 0.25, 9.0, 0.0], "other": [9.0, 0.0]}
    algorithm = AlgorithmConfig(gamma=1.0, lam=0.0)
    found = estimate([side, turns, other], "gae", algorithm, measured={"values": values})
    assert found.returns["turns"][1] == pytest.approx(0.5)
    assert found.returns["side"][1] == pytest.approx(0.0)
    assert found.returns["turns"][3] == pytest.approx(1.0)
