"""What the attempts of a step earned, in its numbers: a reward that is missing is in none of them."""

import pytest

from lightning_trainer.metrics.row import group_metrics
from lightning_trainer.samples.batches import build_batch


@pytest.fixture
def build(make_call, make_attempt, make_policy):
    """``build(evaluations, **policy)``: a step of the groups g (a1, a2) and h (b1, b2), of one call each."""

    def build(evaluations, **policy):
        names = {"a1": "g", "a2": "g", "b1": "h", "b2": "h"}
        calls = [make_call(name, attempt_id=name) for name in names]
        attempts = [make_attempt(name, group_id=group) for name, group in names.items()]
        return build_batch(calls, attempts, evaluations, make_policy(**policy), step=1)

    return build


def test_a_group_that_lacks_a_part_of_the_reward_is_not_in_the_mean(build, make_evaluation):
    """The judge refused h: what is left of its sums, 0.25 each, is no reward."""
    format_of_all = [make_evaluation(1.0, name, name="format") for name in ("a1", "a2", "b1", "b2")]
    helpful = [make_evaluation(1.0, "a1", name="helpful"), make_evaluation(0.0, "a2", name="helpful")]
    made = build([*format_of_all, *helpful], reward={"helpful": 1.0, "format": 0.25})
    measured = group_metrics(made.groups)
    assert [group.rewards for group in made.groups] == [(1.25, 0.25), (None, None)]
    assert (measured["reward/mean"], measured["reward/deviation"], measured["attempts/scored"]) == (0.75, 0.5, 2.0)


def test_what_calls_or_agents_were_given_is_what_the_attempt_earned(build, make_evaluation):
    """Calls of g: 1 and 0; agents of h: 0.5, and nothing. An attempt's own reward counts instead of theirs."""
    given = [
        make_evaluation(1.0, None, span_id="chat-a1"),
        make_evaluation(0.0, None, span_id="chat-a2"),
        make_evaluation(0.5, "b1", agent="solver"),
    ]
    made = build(given, credit={"scheme": "steps"})
    measured = group_metrics(made.groups)
    assert [group.rewards for group in made.groups] == [(1.0, 0.0), (0.5, None)]
    assert (measured["reward/mean"], measured["reward/deviation"], measured["attempts/scored"]) == (0.5, 0.5, 3.0)
    own = build([*given, make_evaluation(-1.0, "b1")], credit={"scheme": "steps"})
    assert own.groups[1].rewards == (-1.0, None)
