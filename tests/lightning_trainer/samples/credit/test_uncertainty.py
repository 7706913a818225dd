"""The groups whose attempts differ most are kept; nothing that was refused is counted or revived."""

from dataclasses import replace

import pytest

from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.credit.groups import GroupSummary, keep_most_uncertain, leave_out_below, moving_floor
from lightning_trainer.samples.transitions.reasons import Reason


def _group(name: str, spread: float, verdict: Reason = Reason.SAMPLED) -> GroupSummary:
    """What single agents or calls earned differs; the attempts have no reward of their own."""
    flat = verdict is Reason.ZERO_VARIANCE_GROUP
    return GroupSummary(name, "task", 2, 2, (None, None), verdict, None, spread=spread, flat=flat)


def _verdicts(groups, share):
    return {group.group_id: group.verdict for group in keep_most_uncertain(groups, share)}


def test_the_share_with_the_largest_spread_is_kept():
    groups = [_group("a", 0.1), _group("b", 0.5), _group("c", 0.3), _group("d", 0.2)]
    found = _verdicts(groups, 0.5)
    assert [name for name, verdict in found.items() if verdict is Reason.SAMPLED] == ["b", "c"]
    assert found["a"] is Reason.LOW_VARIANCE_GROUP


def test_one_is_always_kept_and_equals_are_decided_by_their_names():
    assert _verdicts([_group("b", 0.5), _group("a", 0.5)], 0.01) == {
        "b": Reason.LOW_VARIANCE_GROUP,
        "a": Reason.SAMPLED,
    }


def test_groups_without_spread_count_and_refused_ones_do_not():
    groups = [
        _group("a", 0.5),
        _group("b", 0.2),
        _group("flat", 0.0, Reason.ZERO_VARIANCE_GROUP),
        _group("flat too", 0.0, Reason.ZERO_VARIANCE_GROUP),
        _group("lonely", 9.0, Reason.GROUP_TOO_SMALL),
    ]
    assert _verdicts(groups, 0.25) == {
        "a": Reason.SAMPLED,
        "b": Reason.LOW_VARIANCE_GROUP,
        "flat": Reason.ZERO_VARIANCE_GROUP,
        "flat too": Reason.ZERO_VARIANCE_GROUP,
        "lonely": Reason.GROUP_TOO_SMALL,
    }


def test_attempts_with_rewards_are_ranked_by_those_and_not_by_how_many_calls_earned_them():
    groups = [
        replace(_rewarded("long", 0.5, 0.6), spread=3.0),  # credit of one row a call: a long attempt earns more
        replace(_rewarded("close", 0.0, 0.8), spread=1.0),
        replace(_rewarded("flat", 1.0, 1.0, verdict=Reason.ZERO_VARIANCE_GROUP), spread=9.0),
    ]
    assert _verdicts(groups, 0.3) == {
        "long": Reason.LOW_VARIANCE_GROUP,
        "close": Reason.SAMPLED,
        "flat": Reason.ZERO_VARIANCE_GROUP,
    }


def test_groups_that_are_equal_in_all_they_are_trained_on_come_last():
    groups = [_group("a", 0.1), _group("flat", 9.0, Reason.ZERO_VARIANCE_GROUP)]
    assert _verdicts(groups, 0.5)["a"] is Reason.SAMPLED


def _rewarded(name: str, *rewards: float | None, verdict: Reason = Reason.SAMPLED) -> GroupSummary:
    flat = verdict is Reason.ZERO_VARIANCE_GROUP
    return GroupSummary(name, "task", len(rewards), len(rewards), rewards, verdict, None, flat=flat)


def test_the_moving_floor_by_hand():
    assert moving_floor([], 0.5, 0.9) == 0.0
    # The average: 0.2, then 0.9 * 0.2 + 0.1 * 0.4 = 0.22, then 0.9 * 0.22 + 0.1 * 0.1 = 0.208.
    assert moving_floor([0.2], 0.5, 0.9) == pytest.approx(0.1)
    assert moving_floor([0.2, 0.4, 0.1], 0.5, 0.9) == pytest.approx(0.104)


def test_groups_below_the_floor_are_left_out_and_refused_ones_stay_refused():
    groups = [
        _rewarded("far", 0.0, 0.5),  # deviation 0.25
        _rewarded("near", 0.3, 0.4, None),  # 0.05
        _rewarded("refused", 0.3, None, verdict=Reason.GROUP_TOO_SMALL),
    ]
    assert [group.verdict for group in leave_out_below(groups, 0.1)] == [
        Reason.SAMPLED,
        Reason.LOW_VARIANCE_GROUP,
        Reason.GROUP_TOO_SMALL,
    ]
    assert leave_out_below(groups, 0.0) == groups


def test_the_share_is_one_of_all_groups_those_below_the_floor_too(
    make_policy, make_attempt, make_call, make_evaluation
):
    policy = make_policy(algorithm={"keep_most_uncertain": 0.5, "deviation_floor": 0.5})
    calls, attempts, evaluations = [], [], []
    for group, apart in enumerate((1.0, 0.8, 0.02, 0.01)):
        for member in (0, 1):
            name = f"g{group}m{member}"
            attempts.append(make_attempt(name, group_id=f"g{group}"))
            calls.append(make_call(name, attempt_id=name))
            evaluations.append(make_evaluation(member * apart, name))
    build = build_batch(calls, attempts, evaluations, policy, 1, deviation_floor=0.1)
    low = Reason.LOW_VARIANCE_GROUP
    assert [group.verdict for group in build.groups] == [Reason.SAMPLED, Reason.SAMPLED, low, low]
    build = build_batch(calls, attempts, evaluations, policy, 1, deviation_floor=0.45)
    assert [group.verdict for group in build.groups] == [Reason.SAMPLED, low, low, low]
