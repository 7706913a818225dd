import pytest

from lightning_trainer.metrics.row import group_metrics
from lightning_trainer.samples.credit.groups import Member, judge_group
from lightning_trainer.samples.transitions.reasons import Reason


@pytest.fixture
def member(make_attempt):
    def member(name, *row_credits, task="t", agents=("solver",), reward=None):
        reward = row_credits[0] if row_credits and reward is None else reward
        peers = {("solver", ""): row_credits} if row_credits else {}
        return Member(make_attempt(name, task_id=task), frozenset(agents), reward, peers)

    return member


def test_attempts_of_one_task_by_the_same_agents_are_compared(member):
    summary = judge_group("g", [member("b", 0.0), member("a", 1.0), member("c")], drop_zero_variance=True)
    assert (summary.verdict, summary.refused_reason) == (Reason.SAMPLED, None)
    assert (summary.task_id, summary.size, summary.comparable, summary.rewards) == ("t", 3, 2, (1.0, 0.0, None))


def test_a_group_of_one_is_refused_with_its_members(member):
    summary = judge_group("g", [member("a", 1.0), member("b")], drop_zero_variance=True)
    assert summary.verdict is Reason.GROUP_TOO_SMALL
    assert summary.refused_reason is not None
    assert (
        "group g (by lightning.group.id): 1 of its 2 attempts can be compared (attempts a, b)" in summary.refused_reason
    )


def test_attempts_of_different_tasks_are_refused_with_the_tasks(member):
    summary = judge_group("g", [member("a", 1.0), member("b", 0.0, task="u")], drop_zero_variance=True)
    assert (summary.verdict, summary.task_id) == (Reason.GROUP_MIXED_TASKS, None)
    assert summary.refused_reason is not None
    assert "mixes the tasks t, u (attempts a, b)" in summary.refused_reason


def test_attempts_by_different_agents_are_refused_where_credit_depends_on_who_took_part(member):
    members = [member("a", 1.0), member("b", 0.0, agents=("solver", "critic"))]
    summary = judge_group("g", members, drop_zero_variance=True, one_team="it is divided among them")
    assert summary.verdict is Reason.GROUP_MIXED_AGENTS
    assert summary.refused_reason is not None
    assert "critic+solver, solver; attempts a, b): it is divided among them" in summary.refused_reason


def test_attempts_may_take_different_routes_where_each_agent_is_compared_with_itself(make_attempt):
    def attempt(name, reward, *agents):
        return Member(make_attempt(name), frozenset(agents), reward, {(agent, ""): (reward,) for agent in agents})

    members = [
        attempt("a", 1.0, "triage", "billing"),
        attempt("b", 0.0, "triage", "support"),
        attempt("c", 0.0, "triage"),
    ]
    summary = judge_group("g", members, drop_zero_variance=True)
    assert (summary.verdict, summary.refused_reason) == (Reason.SAMPLED, None)
    assert summary.unpaired == {("billing", ""), ("support", "")}


def test_an_attempt_without_anything_to_train_spoils_no_group(member):
    members = [member("a", 1.0), member("b", 0.0), member("crashed", agents=(), task="u")]
    assert judge_group("g", members, drop_zero_variance=True).verdict is Reason.SAMPLED


@pytest.mark.parametrize(
    ("rows", "flat"),
    [
        (((1.0,), (1.0,)), True),
        (((0.1 + 0.2,), (0.3,)), True),
        (((1.0,), (0.0,)), False),
        (((1.0, 0.5), (1.0, 0.5)), False),
        (((1e-3,), (2e-3,)), False),
    ],
)
def test_rows_that_are_all_equal_teach_nothing(member, rows, flat):
    members = [member(str(index), *values) for index, values in enumerate(rows)]
    verdict = judge_group("g", members, drop_zero_variance=True).verdict
    assert (verdict is Reason.ZERO_VARIANCE_GROUP) == flat
    kept = judge_group("g", members, drop_zero_variance=False)
    assert (kept.verdict, kept.flat) == (Reason.SAMPLED, flat)
    assert group_metrics([kept])["groups/zero_variance"] == flat


def test_the_refusal_names_what_the_group_was_made_by(member):
    by_task = judge_group("g", [member("a", 1.0)], drop_zero_variance=True, group_by="task").refused_reason
    by_prompt = judge_group("g", [member("a", 1.0)], drop_zero_variance=True, group_by="prompt").refused_reason
    assert (by_task or "").startswith("group g (by task id): 1 of its 1 attempts can be compared (attempts a)")
    assert (by_prompt or "").startswith("group g (by first prompt): 1 of its 1 attempts can be compared (attempts a)")


def test_one_prompt_may_belong_to_several_task_ids(member):
    members = [member("a", 1.0), member("b", 0.0, task="u")]
    assert judge_group("g", members, drop_zero_variance=True, group_by="prompt").verdict is Reason.SAMPLED


def _turns(make_attempt, name, **credits):
    rows = {("solver", turn): (credit,) for turn, credit in credits.items()}
    return Member(make_attempt(name), frozenset({"solver"}), 1.0, rows)


def test_a_turn_that_only_one_attempt_got_to_is_compared_with_none(make_attempt):
    members = [_turns(make_attempt, "a", t0=1.0, t1=1.0), _turns(make_attempt, "b", t0=0.0)]
    summary = judge_group("g", members, drop_zero_variance=True)
    assert (summary.verdict, summary.unpaired) == (Reason.SAMPLED, {("solver", "t1")})


def test_a_group_is_flat_when_all_that_is_compared_in_it_is_equal(make_attempt):
    """Turn 0 earned 1 and 1, turn 1 earned 5 and 5: the values differ, but never those that are compared."""
    members = [_turns(make_attempt, name, t0=1.0, t1=5.0) for name in "ab"]
    assert judge_group("g", members, drop_zero_variance=True).verdict is Reason.ZERO_VARIANCE_GROUP


def test_attempts_without_a_turn_in_common_are_refused(make_attempt):
    members = [_turns(make_attempt, "a", t0=1.0), _turns(make_attempt, "b", t1=0.0)]
    summary = judge_group("g", members, drop_zero_variance=True)
    assert summary.verdict is Reason.GROUP_TOO_SMALL
    assert summary.refused_reason is not None
    assert "no call of an attempt has a counterpart in another (attempts a, b)" in summary.refused_reason
    assert "solver t0, solver t1" in summary.refused_reason


def test_a_group_that_lacks_the_baseline_it_needs_is_refused_with_its_members(member):
    members = [member("a", 1.0), member("b", 0.0)]
    summary = judge_group("g", members, drop_zero_variance=True, needs_baseline=True)
    assert summary.verdict is Reason.NO_BASELINE
    assert summary.refused_reason is not None
    assert 'has no baseline: no attempt of mode "baseline" with a reward' in summary.refused_reason
    assert "(attempts a, b)" in summary.refused_reason


def test_equal_rewards_teach_something_where_the_baseline_is_another(member):
    members = [member("a", 1.0), member("b", 1.0)]

    def verdict(baseline):
        return judge_group("g", members, drop_zero_variance=True, needs_baseline=True, baseline=baseline).verdict

    assert verdict(0.0) is Reason.SAMPLED
    assert verdict(1.0) is Reason.ZERO_VARIANCE_GROUP
