"""What a person hears of groups that are not trained: one sentence for each kind of reason, not one for each group."""

from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.credit.groups import GroupSummary
from lightning_trainer.samples.problems import nothing_trained, refusals
from lightning_trainer.samples.transitions.reasons import Reason


def _group(name: str, verdict: Reason, why: str | None) -> GroupSummary:
    return GroupSummary(
        group_id=name, task_id=None, size=2, comparable=0, rewards=(), verdict=verdict, refused_reason=why
    )


def test_groups_that_are_refused_alike_are_said_once_and_counted():
    small = [_group(name, Reason.GROUP_TOO_SMALL, f"group {name} is small") for name in "abc"]
    mixed = _group("m", Reason.GROUP_MIXED_TASKS, "group m mixes tasks")
    good = _group("g", Reason.SAMPLED, None)
    assert refusals([small[0], mixed, good, *small[1:]]) == [
        "group a is small. The same is true of 2 more groups",
        "group m mixes tasks",
    ]
    assert refusals(small[:2]) == ["group a is small. The same is true of 1 more group"]
    assert refusals([good]) == []


def test_every_group_that_ended_in_an_error_is_named():
    failed = [_group(name, Reason.QUARANTINED, f"group {name}: error {name}") for name in "ab"]
    assert refusals(failed) == ["group a: error a", "group b: error b"]


def test_a_step_without_a_batch_says_what_its_groups_were_left_out_for():
    small = _group("s", Reason.GROUP_TOO_SMALL, "group s is small")
    poor = [_group(name, Reason.LOW_REWARD, None) for name in "ab"]
    assert nothing_trained([small, *poor]) == (
        "group s is small; groups left out (low_reward): 2. The reward is below the least that was asked of a "
        "demonstration."
    )
    assert nothing_trained([]) == "no token of it can be trained"


def test_an_agent_whose_program_names_another_policy_as_its_model_is_said(make_call, make_attempt, make_policy):
    policy = make_policy(agents=("solver", "worker"))
    own, moved, judged = (
        make_call("s1"),
        make_call("s2", agent="worker", policy="worker"),
        make_call("s3", policy="judge"),
    )
    attempts = [make_attempt("a1")]
    assert build_batch([own, moved, judged], attempts, [], policy, 1).problems[:1] == (
        "policy math claims the agent 'worker' and cannot train it: policy worker answered its calls (1), as it does "
        "where a program names it as the model; name math there, or a model that is not a policy",
    )
    others = (moved, make_call("s4", agent="nobody", policy="worker"))
    assert not any("'nobody'" in said for said in build_batch(others, attempts, [], policy, 1).problems)
    answered = make_call("s5", agent="worker")
    assert not any("cannot train" in said for said in build_batch([moved, answered], attempts, [], policy, 1).problems)


def test_a_reward_of_an_agent_that_made_no_call_is_said(make_call, make_attempt, make_evaluation, make_policy):
    """Before: a name with a letter missing taught nothing, and nobody heard of it. ``judge`` was silent once only."""
    calls = [make_call("s1"), make_call("s2", agent="judge", policy="judge"), make_call("s3", attempt_id="a2")]
    rewarded = [("a1", "solver"), ("a2", "judge"), ("a1", "sovler"), ("a2", "sovler"), ("a0", "gone")]
    evaluations = [make_evaluation(0.5, attempt_id, agent=agent) for attempt_id, agent in rewarded]
    build = build_batch(calls, [make_attempt("a1"), make_attempt("a2")], evaluations, make_policy(), 1)
    assert [said for said in build.problems if said.startswith("rewards of the agent")] == [
        "rewards of the agent 'sovler' teach nothing: it made no call in any attempt here; agents that did: judge, "
        "solver. Give lt.reward(agent=...) a name of these"
    ]


def test_a_group_that_is_too_small_for_stale_calls_is_said_to_be(make_call, make_attempt, make_evaluation, make_policy):
    """Before: its attempts were all scored, and the step's notes said only that attempts must be scored."""
    policy = make_policy(max_staleness=2)
    calls = [make_call(f"s{n}", attempt_id=f"a{n}", policy_version=version) for n, version in ((1, 0), (2, 5))]
    attempts = [make_attempt(f"a{n}") for n in (1, 2)]
    scores = [make_evaluation(float(n), f"a{n}") for n in (1, 2)]

    def said(versions):
        return build_batch(calls, attempts, scores, policy, 1, versions=versions).problems

    (small, stale) = said({3, 4, 5})
    assert "1 of its 2 attempts can be compared" in small
    assert stale == (
        "calls not trained (stale): 1. More than max_staleness = 2 versions have gone live since they were answered: "
        "raise it, or let groups fill up sooner (a smaller group_size or groups_per_step)"
    )
    assert said(None) == ()
