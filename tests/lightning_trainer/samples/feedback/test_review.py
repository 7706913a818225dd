"""What counts and what waits: quarantine, caps, the latest word of a source, and the reward that is left."""

from dataclasses import replace

import pytest

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.samples.feedback.review import Kept, State, review

HOUR, MINUTE = 3600 * 10**9, 60 * 10**9
NOW = 100 * HOUR


def said(number: int, source: str, value: float | None, *, at: int = 90 * HOUR, **changes) -> Kept:
    fields = {
        "trace_id": f"{number:032x}",
        "span_id": "1" * 16,
        "source": source,
        "kind": "person",
        "name": "feedback",
        "attempt_id": "a",
        "response_id": None,
        "value": value,
        "taken_back": False,
        "edited": False,
        "given_ns": at,
        "received_ns": at,
    }
    return Kept(**{**fields, **changes})


def outcome(kept, verified=(), **settings):
    (one,) = review(kept, dict(verified), FeedbackConfig(**settings), NOW).outcomes
    return one


def test_the_mean_of_unknown_sources_is_the_reward():
    assert outcome([said(1, "a", 1.0), said(2, "b", 1.0), said(3, "c", 0.25)]).value == pytest.approx(0.75, abs=0.05)


def test_the_latest_word_of_a_source_counts_and_can_be_taken_back():
    kept = [said(1, "a", 0.0, at=90 * HOUR), said(2, "a", 1.0, at=91 * HOUR)]
    assert outcome(kept).value == 1.0
    assert outcome(kept[::-1]).value == 1.0
    back = [*kept, said(3, "a", None, at=92 * HOUR, taken_back=True)]
    assert outcome(back).value is None


@pytest.mark.parametrize(
    ("taken_back", "values"),
    [
        ({"response_id": "r1"}, {None: 0.0, "r1": None, "r2": 0.0}),
        ({"response_id": "r2"}, {None: 1.0, "r1": 1.0, "r2": None}),
        ({"response_id": None}, {None: None, "r1": None, "r2": None}),
    ],
    ids=str,
)
def test_a_rating_that_is_taken_back_leaves_what_its_source_says_of_other_responses(taken_back, values):
    """Before: without the thumb on one turn, that on another was gone too."""
    kept = [said(1, "a", 1.0, at=90 * HOUR, response_id="r1"), said(2, "a", 0.0, at=91 * HOUR, response_id="r2")]
    back = [*kept, said(3, "a", None, at=92 * HOUR, taken_back=True, **taken_back)]
    assert outcome(back).value == values[None]
    of_calls = {one.response_id: one.value for one in review(back, {}, FeedbackConfig(scores="call"), NOW).outcomes}
    assert {name: of_calls[name] for name in ("r1", "r2")} == {name: values[name] for name in ("r1", "r2")}
    again = [*back, said(4, "a", 0.5, at=93 * HOUR, response_id="r1")]
    assert outcome(again).value == 0.5


def test_a_score_that_is_deleted_leaves_another_score_of_its_source():
    """What is said under one id of Langfuse's has one trace."""
    first, second = said(1, "a", 1.0, at=90 * HOUR), said(2, "a", 0.0, at=91 * HOUR)
    changed = said(1, "a", 0.5, at=92 * HOUR, span_id="2" * 16)
    deleted = said(1, "a", None, at=93 * HOUR, span_id="3" * 16, taken_back=True)
    assert outcome([first, second, changed]).value == 0.5
    assert outcome([first, second, changed, deleted]).value == 0.0
    nothing = said(3, "a", None, at=94 * HOUR, taken_back=True)
    assert outcome([first, second, changed, nothing]).value is None
    assert outcome([first, nothing, said(4, "a", 0.0, at=95 * HOUR), replace(deleted, given_ns=NOW)]).value == 0.0


def test_feedback_waits_in_quarantine_unless_its_source_is_trusted():
    fresh = [said(1, "a", 1.0, at=NOW - MINUTE)]
    found = review(fresh, {}, FeedbackConfig(), NOW)
    assert (set(found.states.values()), found.outcomes) == ({State.QUARANTINED}, ())
    assert found.next_release_ns == NOW - MINUTE + 10 * MINUTE
    assert outcome(fresh, trusted=("a*",)).value == 1.0


@pytest.mark.parametrize(("value", "later"), [(None, None), (0.0, 0.0)], ids=["taken back", "changed"])
def test_what_a_source_has_withdrawn_in_quarantine_is_never_a_reward(value, later):
    """Before: from the end of its own quarantine to that of the later word, it was, and a step could take it."""
    kept = [
        said(1, "a", 1.0, at=NOW - 10 * MINUTE),
        said(2, "a", value, at=NOW - MINUTE, taken_back=value is None),
        said(3, "b", 0.5, at=NOW - 20 * MINUTE),
    ]
    for at, expected in ((NOW - 1, 0.5), (NOW, 0.5), (NOW + 9 * MINUTE, 0.5 if later is None else 0.25)):
        (one,) = review(kept, {}, FeedbackConfig(), at).outcomes
        assert one.value == pytest.approx(expected, abs=0.05)
    alone = review(kept[:2], {}, FeedbackConfig(), NOW).outcomes
    assert [one.value for one in alone] == [None], "a reward that was made of the first word is retracted"


def test_a_rating_is_taken_back_at_once_and_whatever_the_caps_are():
    now = NOW - MINUTE
    kept = [said(1, "a", 1.0, at=now - 20 * MINUTE), said(2, "a", None, at=now, taken_back=True)]
    for config in (FeedbackConfig(), FeedbackConfig(source_per_hour=1), FeedbackConfig(all_per_hour=1)):
        found = review(kept, {}, config, now)
        assert (found.states[kept[1].key], found.outcomes[0].value) == (State.COUNTED, None)
    edited = [*kept, said(3, "a", None, at=NOW, taken_back=True, edited=True)]
    state = review(edited, {}, FeedbackConfig(), NOW).states[edited[2].key]
    assert state is State.QUARANTINED, "an edit beside it waits"


def test_a_word_that_exceeds_a_cap_leaves_what_its_source_said_before():
    kept = [said(1, "a", 1.0, at=NOW - 20 * MINUTE), said(2, "a", 0.0, at=NOW - 20 * MINUTE + 1)]
    assert outcome(kept, source_per_hour=1).value == 1.0


def test_what_a_source_says_beyond_its_cap_does_not_count_and_what_came_before_does():
    kept = [said(number, "busy", 1.0, attempt_id=f"a{number}") for number in range(5)]
    found = review(kept, {}, FeedbackConfig(source_per_hour=3), NOW)
    assert [found.states[one.key] for one in kept] == [State.COUNTED] * 3 + [State.CAPPED] * 2
    assert found.over_cap == set(), "those of an earlier hour are over"
    assert review(kept, {}, FeedbackConfig(source_per_hour=3), 90 * HOUR + MINUTE).over_cap == {"busy"}
    of_all = review([*kept, said(9, "late", 1.0)], {}, FeedbackConfig(all_per_hour=5), NOW)
    assert of_all.states[said(9, "late", 1.0).key] is State.CAPPED
    others = review([*kept, said(9, "late", 1.0)], {}, FeedbackConfig(source_per_hour=3, all_per_hour=4), NOW)
    assert others.states[said(9, "late", 1.0).key] is State.COUNTED, "what is over its own cap takes no room of others"
    later = [*kept, said(9, "busy", 1.0, at=92 * HOUR)]
    assert review(later, {}, FeedbackConfig(source_per_hour=5), NOW).states[later[-1].key] is State.COUNTED


def test_a_source_that_verified_rewards_contradict_is_not_enough_for_a_reward():
    kept = [said(number, "liar", 1.0, attempt_id=f"a{number}") for number in range(12)]
    verified = {f"a{number}": 0.0 for number in range(11)}
    found = {one.attempt_id: one.value for one in review(kept, verified, FeedbackConfig(), NOW).outcomes}
    assert found["a11"] is None
    honest = [*kept, said(99, "honest", 0.0, attempt_id="a11")]
    found = {one.attempt_id: one.value for one in review(honest, verified, FeedbackConfig(), NOW).outcomes}
    assert found["a11"] == pytest.approx(0.0, abs=0.02)


def test_a_response_can_be_scored_alone():
    kept = [said(1, "a", 1.0, response_id="r1"), said(2, "a", 0.0, response_id="r2")]
    found = review(kept, {}, FeedbackConfig(scores="call"), NOW).outcomes
    assert {(one.response_id, one.value) for one in found} == {("r1", 1.0), ("r2", 0.0)}
    (one,) = review(kept, {}, FeedbackConfig(), NOW).outcomes
    assert one.response_id is None


def test_what_nobody_has_seen_is_unmatched():
    (state,) = review([said(1, "a", 1.0, attempt_id=None)], {}, FeedbackConfig(), NOW).states.values()
    assert state is State.UNMATCHED
