"""The schemes that need a critic, by hand: two calls of one attempt, values given."""

from dataclasses import replace

import pytest

from lightning_trainer.config.policies.credit import GaeBilevelCredit, GaeTokensCredit, GaeTurnsCredit
from lightning_trainer.sampling import support_of

pytestmark = pytest.mark.verl

_VALUES = {"a": [9.0, 0.5, 0.25, 9.0, 1.0]}


@pytest.fixture
def estimate(sample):
    from lightning_trainer.training.update.estimation.critic_schemes import value_estimate

    one = sample("a", [1, 2, 3, 4, 5], [0, 1, 1, 0, 1], group="g", credit=0.0)
    first, second = one.segments
    one = replace(one, segments=(first, replace(second, credit=2.0, follows=first.transition_id)))

    def of(scheme, penalties=None):
        found = value_estimate([one], _VALUES, penalties, scheme)
        return found.advantages["a"], found.returns["a"], found.return_masks["a"]

    return of


def test_turns(estimate):
    """V before the turns is 0.5 and 1: A_2 = 2 - 1 = 1, A_1 = 0 + 0.5 * 1 - 0.5 + 0.25 * A_2 = 0.25."""
    advantages, returns, mask = estimate(GaeTurnsCredit(gamma=0.5, lam=0.5))
    assert advantages == pytest.approx([0.0, 0.25, 0.25, 0.0, 1.0])
    assert mask == [0, 1, 0, 0, 1]
    assert [returns[1], returns[4]] == pytest.approx([0.75, 2.0])


def test_tokens_go_on_across_what_the_tool_said(estimate):
    """From the end: 2 - 1 = 1; 0.5 * 1 - 0.25 + 0.25 * 1 = 0.5; 0.5 * 0.25 - 0.5 + 0.25 * 0.5 = -0.25."""
    advantages, returns, mask = estimate(GaeTokensCredit(gamma=0.5, lam=0.5))
    assert advantages == pytest.approx([0.0, -0.25, 0.5, 0.0, 1.0])
    assert mask == [0, 1, 1, 0, 1]
    assert returns == pytest.approx([0.0, 0.25, 0.75, 0.0, 2.0])


def test_turns_first_and_then_the_tokens_of_each(estimate):
    """V_k is that before the last token: A_2 = 1, A_1 = 0.5 * 1 - 0.25 + 0.5 * 1 = 0.75; then 0.25 - 0.5 + 0.75."""
    advantages, _, _ = estimate(GaeBilevelCredit(gamma_turn=0.5, lam_turn=1.0, gamma_token=1.0, lam_token=1.0))
    assert advantages == pytest.approx([0.0, 0.5, 0.75, 0.0, 1.0])


def test_what_is_taken_off_at_a_token_is_met_there(estimate):
    penalties = {"a": [9.0, 0.0, 0.1, 9.0, 0.2]}
    advantages, _, _ = estimate(GaeTokensCredit(gamma=1.0, lam=0.0), penalties)
    assert advantages == pytest.approx([0.0, 0.25 - 0.5, 1.0 - 0.25 - 0.1, 0.0, 2.0 - 1.0 - 0.2])


def test_branches_are_averaged_and_do_not_see_each_other(sample):
    from lightning_trainer.training.update.estimation.critic_schemes import value_estimate

    root = sample("a", [1, 2], [0, 1], group="g", credit=0.0)
    left = sample("l", [1, 2, 3], [0, 0, 1], group="g", credit=1.0)
    right = sample("r", [1, 2, 4], [0, 0, 1], group="g", credit=3.0)
    follows = root.segments[0].transition_id
    branches = [
        replace(branch, attempt_id=root.attempt_id, segments=(replace(branch.segments[0], follows=follows),))
        for branch in (left, right)
    ]
    values = {"a": [0.0, 1.0], "l": [0.0, 0.0, 0.5], "r": [0.0, 0.0, 1.5]}
    found = value_estimate([root, *branches], values, None, GaeTokensCredit(gamma=1.0, lam=1.0))
    assert found.advantages["l"][2] == pytest.approx(0.5)
    assert found.advantages["r"][2] == pytest.approx(1.5)
    # 0 + mean(0.5, 1.5) - 1 + mean(0.5, 1.5)
    assert found.advantages["a"][1] == pytest.approx(1.0)


def test_a_token_without_a_choice_is_no_part_of_a_turn(sample):
    """The reward is met at the last token that had one; 2 - 1 = 1, then 0.5 * 1 - 0.5 + 0.25 * 1 = 0.25."""
    from lightning_trainer.training.update.estimation.critic_schemes import value_estimate

    one = sample("a", [1, 2, 3, 4, 5], [0, 1, 1, 1, 1], group="g", credit=2.0)
    segment = replace(one.segments[0], support=support_of(9, [None, [3], None, [5]]))
    one = replace(one, loss_mask=(0, 1, 0, 1, 0), behavior_logprobs=(0, -1, 0, -1, 0), segments=(segment,))
    values = {"a": [9.0, 0.5, 9.0, 1.0, 9.0]}
    found = value_estimate([one], values, None, GaeTokensCredit(gamma=0.5, lam=0.5))
    assert found.advantages["a"] == pytest.approx([0.0, 0.25, 0.0, 1.0, 0.0])
    assert found.return_masks["a"] == [0, 1, 0, 1, 0]


@pytest.fixture
def advantage_of_the_first_call(make_call, make_attempt, make_evaluation, make_policy):
    """By ``gae_turns`` with lambda 0.95, where the critic says 0.25 everywhere and the attempt earned 1."""
    from lightning_trainer.samples.batches import build_batch
    from lightning_trainer.training.update.estimation.critic_schemes import value_estimate

    def advantage(calls, samples="merged"):
        calls = [*calls, make_call("other", (1,), (7,), attempt_id="a2")]
        policy = make_policy(agents=("solver", "worker"), credit={"scheme": "gae_turns"}, samples=samples)
        workers = [make_call("aside", (2,), (7,), attempt_id="a2", agent="worker", start=5)]
        if all(call.agent == "solver" for call in calls):
            workers.append(make_call("aside too", (2,), (7,), agent="worker", start=5))
        evaluations = [make_evaluation(1.0, agent="solver"), make_evaluation(0.0, "a2", agent="solver")]
        evaluations += [make_evaluation(0.0, name, agent="worker") for name in ("a1", "a2")]
        attempts = [make_attempt(), make_attempt("a2")]
        batch = build_batch([*calls, *workers], attempts, evaluations, policy, 1).batch
        assert batch is not None
        values = {sample.sample_id: [0.25] * len(sample.token_ids) for sample in batch.samples}
        found = value_estimate(batch.samples, values, None, GaeTurnsCredit(gamma=1.0, lam=0.95))
        return next(
            found.advantages[sample.sample_id][segment.start]
            for sample in batch.samples
            for segment in sample.segments
            if segment.transition_id == calls[0].call_id
        )

    return advantage


@pytest.mark.parametrize("samples", ["merged", "tree"])
def test_an_agents_turns_are_its_own_whoevers_sample_they_are_in(samples, make_call, advantage_of_the_first_call):
    """A planner, a worker on its tokens, the planner again: 0.25 - 0.25 + 0.95 * (1 - 0.25)."""
    calls = [
        make_call("plan", (1,), (2,)),
        make_call("work", (1, 2, 3), (4,), start=10, agent="worker"),
        make_call("plan again", (1, 2, 3, 4, 5), (6,), start=20),
    ]
    assert advantage_of_the_first_call(calls, samples) == pytest.approx(0.7125)


@pytest.mark.parametrize("samples", ["merged", "tree"])
def test_reward_gets_across_a_call_that_is_dropped(samples, make_call, advantage_of_the_first_call):
    """Its value is what followed, 0.25: 0.25 - 0.25 + 0.95 * 0.95 * (1 - 0.25). The history is rendered anew."""
    calls = [
        make_call("1", (1,), (2,)),
        make_call("sums up", (8,), (9,), start=10, behavior_logprobs=None),
        make_call("2", (1, 9), (4,), start=20),
    ]
    assert advantage_of_the_first_call(calls, samples) == pytest.approx(0.676875)


def test_the_outcome_gets_across_a_last_call_that_is_dropped(make_call, advantage_of_the_first_call):
    """1 - 0.25."""
    calls = [make_call("1", (1,), (2,)), make_call("2", (1, 2), (9,), start=10, complete=False)]
    assert advantage_of_the_first_call(calls) == pytest.approx(0.75)
