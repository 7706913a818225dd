"""The groups whose attempts differ most are kept; nothing that was refused is counted or revived."""

from lightning_trainer.credit.groups import GroupSummary, keep_most_uncertain
from lightning_trainer.transitions.reasons import Reason


def _group(name: str, spread: float, verdict: Reason = Reason.SAMPLED) -> GroupSummary:
    return GroupSummary(name, "task", 2, 2, (0.0, 1.0), verdict, None, spread=spread)


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
