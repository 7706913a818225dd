from lightning_trainer.samples.credit.group_collector import regroup
from lightning_trainer.types import Media


def _groups(attempts, calls, policy):
    return {attempt.attempt_id: attempt.group_id for attempt in regroup(attempts, calls, policy)}


def test_a_group_is_a_key_a_task_or_a_first_prompt(make_attempt, make_call, make_policy):
    attempts = [
        make_attempt("a", group_id="k1", task_id="t1"),
        make_attempt("b", group_id="k1", task_id="t2"),
        make_attempt("c", group_id="k2", task_id="t2"),
    ]
    calls = [
        make_call("s1", (1, 2), attempt_id="a"),
        make_call("s2", (3, 4), attempt_id="b"),
        make_call("s3", (1, 2), attempt_id="c"),
    ]
    assert _groups(attempts, calls, make_policy()) == {"a": "k1", "b": "k1", "c": "k2"}
    assert _groups(attempts, calls, make_policy(group_by="task")) == {"a": "t1", "b": "t2", "c": "t2"}
    by_prompt = _groups(attempts, calls, make_policy(group_by="prompt"))
    assert by_prompt["a"] == by_prompt["c"] != by_prompt["b"]


def test_the_first_prompt_is_the_earliest_of_the_policys_agents_in_any_order(make_attempt, make_call, make_policy):
    attempts = [make_attempt("a"), make_attempt("b")]
    calls = [
        make_call("s0", (9,), attempt_id="a", agent="bystander", start=0),
        make_call("s1", (1, 2), attempt_id="a", start=5),
        make_call("s2", (7, 8), attempt_id="a", start=6),
        make_call("s3", (1, 2), attempt_id="b", start=50),
    ]
    policy = make_policy(group_by="prompt")
    groups = _groups(attempts, calls, policy)
    assert groups["a"] == groups["b"]
    assert _groups(attempts, calls[::-1] * 2, policy) == groups


def test_an_attempt_without_a_prompt_is_compared_with_none_and_grouping_again_changes_nothing(
    make_attempt, make_call, make_policy
):
    attempts = [make_attempt("a"), make_attempt("b")]
    policy = make_policy(group_by="prompt")
    once = regroup(attempts, [make_call("s1", attempt_id="a", prompt_ids=())], policy)
    assert len({attempt.group_id for attempt in once}) == 2
    assert regroup(once, [], policy) == once


def test_prompts_with_other_images_are_other_prompts(make_attempt, make_call, make_policy):
    """Before: their placeholders were the same, so attempts at other pictures were compared."""
    shown = {"a": "lightning:1", "b": "lightning:2", "c": "lightning:1"}
    calls = [make_call(name, attempt_id=name, media=(Media("image", uri),)) for name, uri in shown.items()]
    groups = _groups([make_attempt(name) for name in shown], calls, make_policy(group_by="prompt"))
    assert groups["a"] == groups["c"] != groups["b"]
