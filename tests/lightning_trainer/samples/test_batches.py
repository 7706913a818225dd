"""A two-call tool rollout, token by token, and how a build answers when there is less to train on than expected."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from lightning_trainer.config.policies.credit import CREDIT_SETTINGS
from lightning_trainer.errors import LedgerImbalanceError
from lightning_trainer.samples import batches
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import AttemptState, LedgerRow, Media, Outcome, RolloutMode, Segment

# "Q: 2 * 3 = ?" is 10 11 12; the model writes <calc>2*3</calc> as 20 21 22; the tool's "6" is rendered 30 31; then
# the model answers "6." as 40 41. In the second attempt it answers 50 at once, which is wrong.
QUESTION, TOOL_CALL, TOOL_RESULT, ANSWER, GUESS = (10, 11, 12), (20, 21, 22), (30, 31), (40, 41), (50,)


@pytest.fixture
def rollouts(make_call, make_attempt, make_evaluation):
    calls = [
        make_call("s1", QUESTION, TOOL_CALL, behavior_logprobs=(-0.1, -0.2, -0.3), policy_version=3),
        make_call(
            "s2",
            QUESTION + TOOL_CALL + TOOL_RESULT,
            ANSWER,
            behavior_logprobs=(-0.4, -0.5),
            start=10,
            policy_version=3,
        ),
        make_call("s3", QUESTION, GUESS, behavior_logprobs=(-2.5,), policy_version=3, attempt_id="a2"),
    ]
    evaluations = [make_evaluation(1.0, "a1"), make_evaluation(0.0, "a2")]
    return calls, [make_attempt("a1"), make_attempt("a2", state=AttemptState.FAILED)], evaluations


def test_a_two_call_tool_rollout_token_by_token(rollouts, make_policy):
    build = build_batch(rollouts[0], rollouts[1], rollouts[2], make_policy(), step=1)
    assert build.batch is not None
    assert (build.batch.policy, build.batch.step) == ("math", 1)
    with_tool, guessed = build.batch.samples

    assert with_tool.token_ids == (10, 11, 12, 20, 21, 22, 30, 31, 40, 41)
    assert with_tool.loss_mask == (0, 0, 0, 1, 1, 1, 0, 0, 1, 1)
    assert with_tool.behavior_logprobs == (0.0, 0.0, 0.0, -0.1, -0.2, -0.3, 0.0, 0.0, -0.4, -0.5)
    assert with_tool.segments == (
        Segment(3, 6, "s1/0", policy_version=3, credit=1.0, row_id="a1/solver"),
        Segment(8, 10, "s2/0", policy_version=3, credit=1.0, row_id="a1/solver", follows="s1/0", order=1),
    )
    assert (with_tool.sample_id, with_tool.agent, with_tool.group_id) == ("a1/s2/0", "solver", "g")

    assert guessed.token_ids == (10, 11, 12, 50)
    assert guessed.loss_mask == (0, 0, 0, 1)
    assert guessed.behavior_logprobs == (0.0, 0.0, 0.0, -2.5)
    assert guessed.segments == (Segment(3, 4, "s3/0", policy_version=3, credit=0.0, row_id="a2/solver"),)

    assert build.ledger == (LedgerRow("solver", "math", 3, Outcome.TRAINED, "sampled", tokens=6, calls=3),)
    assert [(group.group_id, group.task_id, group.size, group.rewards) for group in build.groups] == [
        ("g", "t", 2, (1.0, 0.0))
    ]
    assert build.groups[0].refused_reason is None
    assert build.problems == ()


def test_the_same_rollout_under_discounted_credit(rollouts, make_policy, make_evaluation):
    """a1: steps 0.25 and 0, outcome 1: G_2 = 0 + 1 = 1, G_1 = 0.25 + 0.5 * 1 = 0.75. a2: 0.5 + 0 = 0.5."""
    calls, attempts, evaluations = rollouts
    steps = [
        make_evaluation(0.25, None, span_id="chat-s1"),
        make_evaluation(0.0, None, span_id="chat-s2"),
        make_evaluation(0.5, None, span_id="chat-s3"),
    ]
    policy = make_policy(credit={"scheme": "discounted", "gamma": 0.5})
    build = build_batch(calls, attempts, [*evaluations, *steps], policy, step=1)
    assert build.batch is not None
    assert [(segment.credit, segment.row_id) for sample in build.batch.samples for segment in sample.segments] == [
        (0.75, "s1/0"),
        (1.0, "s2/0"),
        (0.5, "s3/0"),
    ]


def _call_outcomes(build):
    call_outcomes = Counter()
    for row in build.ledger:
        call_outcomes[f"{row.outcome}/{row.reason}"] += row.tokens
    return dict(call_outcomes)


def test_a_failed_judge_is_missing_and_not_zero(rollouts, make_policy, make_evaluation, make_call, make_attempt):
    calls, attempts, evaluations = rollouts
    calls = [*calls, make_call("s4", QUESTION, GUESS, attempt_id="a3")]
    for judged in ([], [make_evaluation(math.nan, "a3")], [make_evaluation(None, "a3")]):
        build = build_batch(calls, [*attempts, make_attempt("a3")], [*evaluations, *judged], make_policy(), step=1)
        assert build.batch is not None
        assert {sample.attempt_id for sample in build.batch.samples} == {"a1", "a2"}
        assert _call_outcomes(build) == {"trained/sampled": 6, "dropped/no_reward": 1}
        assert build.groups[0].rewards == (1.0, 0.0, None)
        assert "attempts that lack a reward: 1 (such as a3); credit scheme 'terminal' needs one" in build.problems[0]
        assert build.problems[0].endswith(" needs one of the attempt as a whole")


def test_a_reward_of_another_name_is_pointed_out(rollouts, make_policy):
    calls, attempts, evaluations = rollouts
    evaluations = [replace(evaluation, name="accuracy") for evaluation in evaluations]
    build = build_batch(calls, attempts, evaluations, make_policy(), step=1)
    assert build.batch is None
    assert "evaluations named accuracy, and the policy's reward is 'reward'" in build.problems[0]


def test_a_group_where_all_earned_the_same_is_left_out_and_counted(rollouts, make_policy, make_evaluation):
    calls, attempts, _ = rollouts
    evaluations = [make_evaluation(1.0, "a1"), make_evaluation(1.0, "a2")]
    build = build_batch(calls, attempts, evaluations, make_policy(), step=1)
    assert build.batch is None
    assert _call_outcomes(build) == {"masked/zero_variance_group": 6}
    assert build.groups[0].verdict is Reason.ZERO_VARIANCE_GROUP
    kept = build_batch(
        calls, attempts, evaluations, make_policy(algorithm={"drop_zero_variance_groups": False}), step=1
    )
    assert _call_outcomes(kept) == {"trained/sampled": 6}


def test_a_group_of_one_is_refused_before_any_advantage(rollouts, make_policy):
    calls, attempts, evaluations = rollouts
    build = build_batch(calls, attempts[:1], evaluations, make_policy(), step=1)
    assert build.batch is None
    assert _call_outcomes(build) == {"dropped/group_too_small": 5, "dropped/unknown_attempt": 1}
    assert build.groups[0].refused_reason is not None
    assert build.groups[0].refused_reason in build.problems


def test_an_over_long_turn_is_cut_off_and_the_turns_before_it_are_trained(rollouts, make_policy):
    build = build_batch(rollouts[0], rollouts[1], rollouts[2], make_policy(max_sample_tokens=9), step=1)
    assert build.batch is not None
    assert [sample.token_ids for sample in build.batch.samples] == [QUESTION + TOOL_CALL, QUESTION + GUESS]
    assert _call_outcomes(build) == {"trained/sampled": 4, "dropped/over_length": 2}
    assert "calls not trained (over_length): 1, with 2 sampled tokens." in build.problems[-1]


def test_an_attempt_that_is_too_long_altogether_does_not_count_as_a_member(rollouts, make_policy, make_call):
    calls, attempts, evaluations = rollouts
    long = make_call("s3", (1,) * 20, GUESS, attempt_id="a2")
    build = build_batch([*calls[:2], long], attempts, evaluations, make_policy(max_sample_tokens=12), step=1)
    assert build.groups[0].verdict is Reason.GROUP_TOO_SMALL


def test_evaluations_and_running_attempts_are_not_trained(rollouts, make_policy, make_call, make_attempt):
    calls, attempts, evaluations = rollouts
    calls = [*calls, make_call("s4", attempt_id="a4"), make_call("s5", attempt_id="a5")]
    others = [
        make_attempt("a4", mode=RolloutMode.EVALUATE),
        make_attempt("a5", state=AttemptState.RUNNING, ended_ns=None),
    ]
    build = build_batch(calls, [*attempts, *others], evaluations, make_policy(), step=1)
    assert _call_outcomes(build) == {"trained/sampled": 6, "dropped/evaluation": 2, "dropped/attempt_running": 2}
    assert build.groups[0].size == 2


def test_agents_that_nobody_claims_are_named(rollouts, make_policy):
    build = build_batch(rollouts[0], rollouts[1], rollouts[2], make_policy(agents=["writer*"]), step=1)
    assert build.problems[0] == (
        "policy math claims the agents writer*, and none of 3 calls is theirs; agents seen: solver"
    )
    assert _call_outcomes(build) == {"dropped/not_selected": 6}


def test_a_step_without_anything_is_not_a_batch(make_policy):
    build = build_batch([], [], [], make_policy(), step=1)
    assert (build.batch, build.ledger, build.groups, build.problems) == (None, (), (), ())


def test_a_builder_that_loses_or_repeats_a_sample_is_refused(rollouts, make_policy, monkeypatch):
    build_samples = batches.samples_of
    for broken in (
        lambda *arguments, **named: build_samples(*arguments, **named)[1:],
        lambda *arguments, **named: build_samples(*arguments, **named) * 2,
    ):
        monkeypatch.setattr(batches, "samples_of", broken)
        with pytest.raises(LedgerImbalanceError, match="does not balance"):
            build_batch(rollouts[0], rollouts[1], rollouts[2], make_policy(), step=1)


def test_a_response_beyond_the_limit_is_left_out_or_cut(rollouts, make_policy):
    """The answer 40 41 comes after eight tokens: with nine, one of it fits; with eight, none does."""
    for limit, rule, call_outcomes in (
        (9, "drop", {"trained/sampled": 4, "dropped/over_length": 2}),
        (9, "cut", {"trained/sampled": 5, "dropped/cut": 1}),
        (8, "cut", {"trained/sampled": 4, "dropped/over_length": 2}),
    ):
        policy = make_policy(max_sample_tokens=limit, over_length=rule)
        build = build_batch(rollouts[0], rollouts[1], rollouts[2], policy, step=1)
        assert _call_outcomes(build) == call_outcomes
        assert build.batch is not None
        assert [len(sample.token_ids) for sample in build.batch.samples] == [
            9 if rule == "cut" and limit == 9 else 6,
            4,
        ]
    cut = build_batch(
        rollouts[0], rollouts[1], rollouts[2], make_policy(max_sample_tokens=9, over_length="cut"), step=1
    )
    assert cut.problems == (
        "calls cut short (cut): 1, with 1 sampled tokens. These tokens of a response lie beyond max_sample_tokens; the "
        "ones before them are trained. It is 9.",
    )


@pytest.mark.parametrize(("samples", "count"), [("calls", 3), ("merged", 2), ("tree", 2)])
def test_what_is_one_sequence_is_chosen_by_configuration(rollouts, make_policy, samples, count):
    build = build_batch(rollouts[0], rollouts[1], rollouts[2], make_policy(samples=samples), step=1)
    assert build.batch is not None
    assert len(build.batch.samples) == count
    assert _call_outcomes(build) == {"trained/sampled": 6}


def test_failed_attempts_are_left_out_where_the_policy_says_so(rollouts, make_policy):
    build = build_batch(rollouts[0], rollouts[1], rollouts[2], make_policy(failed_attempts="drop"), step=1)
    assert _call_outcomes(build) == {"dropped/failed_attempt": 1, "dropped/group_too_small": 5}


def test_prompts_with_pictures_are_left_out_or_become_samples_that_refer_to_them(rollouts, make_policy):
    picture = Media("image", "https://host/cat.png")
    calls = [replace(call, media=(picture,)) if call.span_id == "s3" else call for call in rollouts[0]]
    dropped = build_batch(calls, rollouts[1], rollouts[2], make_policy(), step=1)
    assert _call_outcomes(dropped) == {"dropped/non_text": 1, "dropped/group_too_small": 5}
    kept = build_batch(calls, rollouts[1], rollouts[2], make_policy(non_text="keep"), step=1)
    assert kept.batch is not None
    assert [sample.media for sample in kept.batch.samples] == [(), (picture,)]


def _weighted(make_policy, **changes):
    return make_policy(reward={"score": 1.0, "format": 0.5}, **changes)


def test_several_rewards_are_weighed_and_a_missing_one_drops_the_attempt(
    rollouts, make_policy, make_evaluation, make_call, make_attempt
):
    """a1: 1 + 0.5 * 1 = 1.5, a2: 0 + 0.5 * 0 = 0; a3 was given no format, so it has no reward at all."""
    calls = [*rollouts[0], make_call("s4", QUESTION, GUESS, attempt_id="a3")]
    attempts = [*rollouts[1], make_attempt("a3")]
    evaluations = [
        make_evaluation(value, attempt, name=name)
        for attempt, name, value in (
            ("a1", "score", 1.0),
            ("a1", "format", 1.0),
            ("a2", "score", 0.0),
            ("a2", "format", 0.0),
            ("a3", "score", 1.0),
        )
    ]
    build = build_batch(calls, attempts, evaluations, _weighted(make_policy), step=1)
    assert build.batch is not None
    assert build.groups[0].rewards == (1.5, 0.0, None)
    assert _call_outcomes(build) == {"trained/sampled": 6, "dropped/no_reward": 1}
    assert build.unscored == {"a3"}
    assert any("reward 'format' is missing where others" in problem for problem in build.problems)


def test_a_group_that_nobody_gave_one_of_the_rewards_is_left_out_whatever_else_it_was_given(
    rollouts, make_policy, make_evaluation
):
    """Steps are scored in full; without the group rule the sum would silently have lost its second part."""
    calls, attempts, _ = rollouts
    evaluations = [make_evaluation(1.0, None, name="score", span_id=f"chat-s{number}") for number in (1, 2, 3)]
    build = build_batch(calls, attempts, evaluations, _weighted(make_policy, credit={"scheme": "discounted"}), step=1)
    assert build.batch is None
    assert _call_outcomes(build) == {"dropped/no_reward": 6}
    assert any("nobody in it was given format" in problem for problem in build.problems)


def test_a_turn_that_no_other_attempt_has_is_dropped_with_its_reason(rollouts, make_policy):
    """a1 made two calls and a2 one: under MAGRPO the second has no counterpart."""
    calls, attempts, evaluations = rollouts
    build = build_batch(calls, attempts, evaluations, make_policy(credit={"scheme": "magrpo"}), step=1)
    assert build.batch is not None
    assert _call_outcomes(build) == {"trained/sampled": 4, "dropped/no_peers": 2}
    assert [segment.peers for sample in build.batch.samples for segment in sample.segments] == ["turn 0", "turn 0"]


def test_attempts_of_one_prompt_are_a_group_whatever_their_tasks_are_called(rollouts, make_policy):
    calls, attempts, evaluations = rollouts
    apart = [replace(attempt, group_id=name, task_id=name) for attempt, name in zip(attempts, "xy", strict=True)]
    assert build_batch(calls, apart, evaluations, make_policy(), step=1).batch is None
    build = build_batch(calls, apart, evaluations, make_policy(group_by="prompt"), step=1)
    assert build.batch is not None
    assert len(build.groups) == 1
    together = [replace(attempt, group_id=name) for attempt, name in zip(attempts, "xy", strict=True)]
    assert build_batch(calls, together, evaluations, make_policy(group_by="task"), step=1).batch is not None


def test_an_agents_own_reward_counts_for_it_alone(rollouts, make_policy, make_evaluation):
    calls, attempts, evaluations = rollouts
    own = [make_evaluation(0.5, "a1", agent="solver"), make_evaluation(0.0, "a2", agent="solver")]
    build = build_batch(calls, attempts, [*evaluations, *own], make_policy(), step=1)
    assert build.batch is not None
    assert [segment.credit for sample in build.batch.samples for segment in sample.segments] == [1.5, 1.5, 0.0]


def test_causal_credit_crosses_agents_along_the_span_tree(make_policy, make_call, make_attempt, make_evaluation):
    """boss -> worker -> boss, the worker below a tool's span: gamma = 0.5, R = 1: 1, 0.5 and 0.25 by distance."""
    calls = [
        call
        for name in ("a1", "a2")
        for call in (
            make_call(f"b1{name}", (1,), start=0, agent="boss", attempt_id=name, parent_span_id=f"run{name}"),
            make_call(f"w{name}", (2,), start=5, agent="worker", attempt_id=name, parent_span_id=f"tool{name}"),
            make_call(f"b2{name}", (3,), start=9, agent="boss", attempt_id=name, parent_span_id=f"run{name}"),
        )
    ]
    attempts = [make_attempt("a1"), make_attempt("a2")]
    evaluations = [make_evaluation(1.0, "a1"), make_evaluation(0.0, "a2")]
    policy = make_policy(agents=["*"], credit={"scheme": "causal", "gamma": 0.5})
    parents = {"toola1": "runa1", "toola2": "runa2"}
    build = build_batch(calls, attempts, evaluations, policy, step=1, span_parents=parents)
    assert build.batch is not None
    credits = {s.transition_id: s.credit for sample in build.batch.samples for s in sample.segments}
    assert credits == {"b1a1/0": 0.25, "wa1/0": 0.5, "b2a1/0": 1.0, "b1a2/0": 0.0, "wa2/0": 0.0, "b2a2/0": 0.0}


@pytest.fixture
def handoffs(make_call, make_attempt, make_evaluation):
    """Build attempts of a triage agent that hands over to the agent named, or to none."""

    def build(routes, policy):
        calls, evaluations = [], []
        for number, (route, reward) in enumerate(routes):
            name = f"a{number}"
            calls.append(make_call(f"t{number}", (1,), (10 + number,), attempt_id=name, agent="triage"))
            if route is not None:
                calls.append(make_call(f"h{number}", (2,), (20 + number,), attempt_id=name, agent=route, start=10))
            evaluations.append(make_evaluation(reward, name))
        return build_batch(calls, [make_attempt(f"a{n}") for n in range(len(routes))], evaluations, policy, step=1)

    return build


ROUTED = [("billing", 1.0), ("support", 0.0), (None, 0.0), ("billing", 0.0)]


@pytest.mark.parametrize(
    "scheme", ["terminal", "discounted", "causal", "gigpo", "gae_turns", "gae_tokens", "gae_bilevel"]
)
def test_a_team_under_one_policy_learns_which_route_to_take(handoffs, make_policy, scheme):
    built = handoffs(ROUTED, make_policy(agents=("*",), credit={"scheme": scheme}))
    assert built.batch is not None
    trained = {segment.transition_id for sample in built.batch.samples for segment in sample.segments}
    assert trained == {"t0/0", "t1/0", "t2/0", "t3/0", "h0/0", "h3/0"}
    assert built.call_outcomes["h1/0"][1] == Reason.NO_PEERS


@pytest.mark.parametrize("scheme", ["equal_shares", "hierarchical", "magrpo"])
def test_a_scheme_that_divides_by_who_took_part_refuses_different_routes(handoffs, make_policy, scheme):
    built = handoffs(ROUTED, make_policy(agents=("*",), credit={"scheme": scheme}))
    assert built.batch is None
    (problem,) = built.problems
    assert "billing+triage, support+triage, triage" in problem
    assert f"{scheme} credit divides by who took part" in problem
    others = [name for name, settings in CREDIT_SETTINGS.items() if not settings.one_team]
    assert f"compared; {', '.join(others)} can compare them" in problem


def test_pairs_are_made_of_the_same_agents(handoffs, make_policy):
    built = handoffs(ROUTED, make_policy(agents=("*",), algorithm="dpo"))
    assert built.groups[0].verdict is Reason.GROUP_MIXED_AGENTS


def test_an_agent_that_took_part_only_where_the_reward_is_missing_lacks_it(handoffs, make_policy):
    built = handoffs([(None, 1.0), (None, 0.0), ("billing", None)], make_policy(agents=("*",)))
    assert built.call_outcomes["h2/0"][1] == Reason.NO_REWARD


@pytest.mark.parametrize("scheme", CREDIT_SETTINGS)
def test_every_scheme_builds_a_batch_or_says_what_is_missing(rollouts, make_policy, scheme):
    calls, attempts, evaluations = rollouts
    build = build_batch(calls, attempts, evaluations, make_policy(credit={"scheme": scheme}), step=1)
    if scheme in ("steps", "agent_return"):
        assert build.batch is None
        assert f"credit scheme '{scheme}' needs one wherever others have one" in build.problems[0]
    else:
        assert build.batch is not None


def test_long_responses_are_punished_before_groups_are_judged(rollouts, make_policy):
    """Both earn what they earn; a response of 2 of at most 2 tokens has all of the penalty taken off."""
    calls, attempts, evaluations = rollouts
    plain = build_batch(calls, attempts, evaluations, make_policy(), step=1)
    overlong = {"max_response_tokens": 2, "buffer_tokens": 1, "penalty": 0.5}
    shaped = build_batch(calls, attempts, evaluations, make_policy(algorithm={"overlong": overlong}), step=1)
    assert plain.batch is not None
    assert shaped.batch is not None
    for before, after in zip(plain.batch.samples, shaped.batch.samples, strict=True):
        longest = max(segment.end - segment.start for segment in before.segments)
        for ours, theirs in zip(after.segments, before.segments, strict=True):
            assert theirs.credit is not None
            assert ours.credit == theirs.credit - (0.5 if longest >= 2 else 0.0)


@pytest.fixture
def remax(rollouts, make_call, make_attempt, make_evaluation, make_policy):
    """Build the two attempts under ReMax, beside a greedy one that guessed and earned so much."""

    def build(reward: float | None):
        calls, attempts, evaluations = rollouts
        guess = make_call("s4", QUESTION, GUESS, policy_version=3, attempt_id="greedy")
        return build_batch(
            [*calls, guess],
            [*attempts, make_attempt("greedy", mode=RolloutMode.BASELINE)],
            [*evaluations, make_evaluation(reward, "greedy")],
            make_policy(algorithm={"advantage": "remax"}),
            step=1,
        )

    return build


def test_a_baseline_attempt_gives_its_reward_and_no_token(remax):
    build = remax(0.25)
    assert build.batch is not None
    assert [(sample.attempt_id, sample.baseline) for sample in build.batch.samples] == [("a1", 0.25), ("a2", 0.25)]
    assert LedgerRow("solver", "math", 3, Outcome.DROPPED, "baseline", tokens=1, calls=1) in build.ledger
    (group,) = build.groups
    assert (group.size, group.rewards, build.unscored, build.problems) == (2, (1.0, 0.0), frozenset(), ())


def test_a_baseline_without_a_reward_is_waited_for_and_then_refuses_its_group(remax):
    build = remax(None)
    assert (build.batch, build.unscored) == (None, {"greedy"})
    assert {(row.reason, row.calls) for row in build.ledger} == {("no_baseline", 3), ("baseline", 1)}
    assert any("group g (by lightning.group.id) has no baseline" in problem for problem in build.problems)


def test_a_policy_that_needs_no_baseline_has_none(rollouts, make_attempt, make_evaluation, make_policy):
    calls, attempts, evaluations = rollouts
    greedy = make_attempt("greedy", mode=RolloutMode.BASELINE)
    build = build_batch(calls, [*attempts, greedy], [*evaluations, make_evaluation(0.5, "greedy")], make_policy(), 1)
    assert build.batch is not None
    assert {sample.baseline for sample in build.batch.samples} == {None}


def test_calls_without_an_agents_name_are_trained_as_one_agent_where_a_policy_claims_all(rollouts, make_policy):
    calls, attempts, evaluations = rollouts
    calls = [replace(call, agent=None) for call in calls]
    everybody = build_batch(calls, attempts, evaluations, make_policy(agents=("*",)), step=1)
    assert everybody.batch is not None
    assert {sample.agent for sample in everybody.batch.samples} == {"(no agent)"}
    assert everybody.ledger == (LedgerRow("(no agent)", "math", 3, Outcome.TRAINED, "sampled", tokens=6, calls=3),)
    named = build_batch(calls, attempts, evaluations, make_policy(agents=("?*", "solver")), step=1)
    assert named.batch is None
    assert named.ledger == (LedgerRow("(no agent)", "math", 3, Outcome.DROPPED, "no_agent", tokens=6, calls=3),)
