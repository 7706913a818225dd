"""A call that is dropped is a gap: reward flows across it, and no other call's credit changes."""

import pytest

from lightning_trainer.config.policies.credit import CREDIT_SETTINGS
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.sampling import support_of
from lightning_trainer.types import Outcome

DROPS = {
    "over_length": {"prompt_ids": (5,) * 90},
    "stale": {"policy_version": -1},
    "no_logprobs": {"behavior_logprobs": None},
    "incomplete_stream": {"complete": False},
    "no_policy_version": {"policy_version": None},
    "other_policy": {"policy": "another"},
    "truncated": {"finish_reason": "length"},
    "no_choice": {"response_ids": (9, 9), "support": support_of(50, [[9], [9]])},
}
SCHEMES = tuple(name for name, settings in CREDIT_SETTINGS.items() if not settings.needs_values)


@pytest.fixture
def build(make_call, make_attempt, make_evaluation, make_policy):
    """Two attempts of three calls each with rewards of calls and attempt.

    ``drop``: what is done to one call; ``others``: what the second attempt's calls earn, if not the same; ``own``: what
    the agent earns in each attempt.
    """

    def build(
        credit,
        drop=None,
        which="a1-1",
        rewards=(1.0, 0.0),
        single=(0.25, 0.5, 0.125),
        others=None,
        own=(),
        samples="merged",
    ):
        calls = []
        evaluations = [
            make_evaluation(reward, attempt_id, agent="solver")
            for attempt_id, reward in zip(("a1", "a2"), own, strict=False)
        ]
        for attempt_id, reward in zip(("a1", "a2"), rewards, strict=True):
            for t in range(3):
                name = f"{attempt_id}-{t}"
                changes = {"prompt_ids": (attempt_id == "a1", t), "response_ids": (9, t)}
                changes |= DROPS[drop] if drop and name == which else {}
                calls.append(make_call(name, start=10 * t, attempt_id=attempt_id, **changes))
                if single is not None:
                    earned = others if others and attempt_id == "a2" else single
                    evaluations.append(make_evaluation(earned[t], None, span_id=name))
            evaluations.append(make_evaluation(reward, attempt_id))
        policy = make_policy(
            credit=credit,
            samples=samples,
            max_sample_tokens=50,
            # A scheme may give everything that is left the same.
            algorithm={"mask_truncated": drop == "truncated", "drop_zero_variance_groups": False},
        )
        attempts = [make_attempt("a1"), make_attempt("a2")]
        return build_batch(calls, attempts, evaluations, policy, 1)

    return build


def _credits(build):
    return {s.transition_id: s.credit for sample in build.batch.samples for s in sample.segments}


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_call_of_the_others_gets_another_credit(build, scheme, drop):
    whole = _credits(build({"scheme": scheme}))
    for which in ("a1-0", "a1-1", "a1-2"):
        left = _credits(build({"scheme": scheme}, drop, which))
        # magrpo compares turn by turn: what was compared with the dropped call alone has no peer left.
        assert len(left) == (4 if scheme == "magrpo" else 5)
        assert left == pytest.approx({name: whole[name] for name in left})


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("calls", {"others": (0.75, 0.5, 0.375)}),
        ("agents", {"own": (0.75, 0.5)}),
        ("attempts", {"rewards": (0.5, 0.75)}),
    ],
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_says_which_rewards_it_does_not_use(build, scheme, kind, changed):
    same = _credits(build({"scheme": scheme}, **changed)) == _credits(build({"scheme": scheme}))
    said = kind in CREDIT_SETTINGS[scheme]().unused
    assert same == said, (
        f"credits of {scheme!r} {'stay the same' if same else 'change'} with the rewards of {kind}: "
        f"{'name them in' if same else 'leave them out of'} `unused` of its settings"
    )


@pytest.mark.parametrize("drop", DROPS)
def test_a_critics_scheme_is_told_what_a_dropped_call_earned(build, drop):
    """1 earned 0.5 itself; 2, which is last, 0.125 and the outcome."""
    (first, *_) = build({"scheme": "gae_turns"}, drop, "a1-1").batch.samples
    assert [(gap.transition_id, gap.credit, gap.follows) for gap in first.gaps] == [("a1-1/0", 0.5, "a1-0/0")]
    last = build({"scheme": "gae_turns"}, drop, "a1-2").batch.samples
    assert [gap.credit for sample in last for gap in sample.gaps] == [1.125]


@pytest.mark.parametrize("drop", DROPS)
def test_an_outcome_that_a_dropped_last_call_met_tells_attempts_apart(build, drop):
    built = build({"scheme": "gae_turns"}, drop, "a1-2", single=None)
    (group,) = built.groups
    assert (group.verdict, group.flat, group.spread) == (Reason.SAMPLED, False, 0.5)


def test_a_truncated_response_is_masked_where_that_is_asked_for_and_trained_elsewhere(
    make_call, make_attempt, make_evaluation, make_policy
):
    calls = [make_call("cut", attempt_id="a1", finish_reason="length"), make_call("whole", attempt_id="a2")]
    attempts, evaluations = [make_attempt("a1"), make_attempt("a2")], [make_evaluation(0.0), make_evaluation(1.0, "a2")]
    rows = {}
    for masked in (True, False):
        policy = make_policy(credit={"scheme": "terminal"}, algorithm={"mask_truncated": masked})
        built = build_batch(calls, attempts, evaluations, policy, 1)
        rows[masked] = {(row.outcome, row.reason) for row in built.ledger}
        assert {call.call_id for call in built.calls} == {"cut/0", "whole/0"}
    assert (Outcome.MASKED, Reason.TRUNCATED) in rows[True]
    assert (Outcome.TRAINED, Reason.SAMPLED) not in rows[True], "one attempt is left: no group"
    assert rows[False] == {(Outcome.TRAINED, Reason.SAMPLED)}


def test_what_a_missing_reward_would_have_entered_is_missing(build, make_evaluation):
    built = build({"scheme": "gae_turns"}, rewards=(1.0, 0.0), single=(None, 0.5, 0.125))
    assert {s.transition_id for sample in built.batch.samples for s in sample.segments} == {
        f"{attempt_id}-{t}/0" for attempt_id in ("a1", "a2") for t in (1, 2)
    }


def test_a_call_that_was_given_up_and_made_again_takes_part_in_nothing(
    make_call, make_attempt, make_evaluation, make_policy
):
    """Discounted with gamma = 0.5 over start, (given up,) again, end: the credit of the start is a quarter of 1."""
    calls = [
        make_call("start", (1,), (2,), start=0),
        make_call("given up", (8,), (4,), start=10, complete=False),
        make_call("again", (8,), (5,), start=20),
        make_call("end", (7,), (7,), start=30),
        make_call("other", (1,), (3,), attempt_id="a2"),
    ]
    policy = make_policy(credit={"scheme": "discounted", "gamma": 0.5})
    evaluations = [make_evaluation(1.0), make_evaluation(0.0, "a2")]
    built = build_batch(calls, [make_attempt(), make_attempt("a2")], evaluations, policy, 1)
    assert _credits(built) == {"start/0": 0.25, "again/0": 0.5, "end/0": 1.0, "other/0": 0.0}


def test_segments_are_ordered_by_time_and_not_by_their_place_in_the_batch(
    make_call, make_attempt, make_evaluation, make_policy
):
    """A side call between two turns that share a sequence."""
    calls = [
        make_call("turn 1", (1,), (2,), start=0),
        make_call("side", (8,), (4,), start=10),
        make_call("turn 2", (1, 2, 3), (5,), start=20),
        make_call("other", (1,), (3,), attempt_id="a2"),
    ]
    evaluations = [make_evaluation(1.0), make_evaluation(0.0, "a2")]
    built = build_batch(calls, [make_attempt(), make_attempt("a2")], evaluations, make_policy(), 1)
    assert built.batch is not None
    found = [[(s.transition_id, s.order) for s in sample.segments] for sample in built.batch.samples]
    assert found == [[("side/0", 1)], [("turn 1/0", 0), ("turn 2/0", 2)], [("other/0", 0)]]


@pytest.mark.parametrize(
    ("credit", "kinds"),
    [
        ({"scheme": "terminal"}, ["calls"]),
        ({"scheme": "equal_shares"}, ["calls"]),
        ({"scheme": "steps"}, ["attempts"]),
        ({"scheme": "agent_return"}, ["attempts"]),
        ({"scheme": "agent_return", "team_weight": 1.0}, []),
        ({"scheme": "discounted"}, []),
    ],
)
def test_rewards_that_a_scheme_leaves_out_are_named(build, credit, kinds):
    said = [text for text in build(credit).problems if "does not use rewards of single" in text]
    assert [text.split("rewards of single ")[1].split(":")[0] for text in said] == kinds
