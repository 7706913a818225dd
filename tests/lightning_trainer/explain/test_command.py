"""``lightning-trainer explain`` over real stores: which rollout is meant, what is printed, what is not claimed."""

from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.types import Span, SpanEvent


@pytest.fixture
async def trained(store, take_step, attempt, ask):
    """Two attempts of one group, of which a step has taken both: a1 earned 1 in two calls, b1 0 in one."""
    await store.append([*attempt("a1").spans, *_loser(attempt, ask).spans])
    return await take_step(["a1", "b1"])


def _loser(attempt, ask):
    guess = replace(ask, response=(50,), answer="7")
    return attempt("b1", turns=(guess,), reward=0.0, begins_s=60)


def test_everything_about_a_trained_rollout(trained, explain):
    lines = explain("r-a1")
    assert lines[0] == "rollout r-a1 is trained: step 1, 2 calls, 5 sampled tokens"
    assert lines[2] == (
        "attempt a1 · task 2*3 · group g (2 attempts) · succeeded in 10.0 s · policy math, step 1 (trained) · reward 1 "
        "· 7 spans"
    )
    assert [line.split() for line in lines[3:6]] == [
        ["call", "after", "agent", "prompt", "sampled", "version", "outcome", "credit", "advantage"],
        ["1", "-", "solver", "3", "3", "v3", "trained", "1", "+0.333"],
        ["2", "1", "solver", "8", "2", "v3", "trained", "1", "+0.333"],
    ]
    assert "all calls: trained. The policy sampled these tokens and they are trained." in lines
    assert ["solver", "math@v3", "trained", "5", "2", "sampled"] in [line.split() for line in lines]
    assert "5 sampled tokens recorded, 5 accounted for: it balances" in lines
    assert max(map(len, lines[3:6])) <= 80


@pytest.mark.parametrize("name", ["r-a1", "a1", "r-a", "r-*1"])
def test_a_rollout_is_known_by_its_id_its_attempt_and_their_beginning(trained, explain, name):
    lines = explain(name)
    assert "rollout r-a1 is trained: step 1, 2 calls, 5 sampled tokens" in lines


async def test_of_several_policies_the_newest_rollout_is_that_of_the_named_one(store, attempt, ask, explain, folder):
    other = '[[policy]]\nname = "plain"\nagents = ["helper"]\nmodel = "random:nowhere"\n'
    config = folder / "lightning.toml"
    config.write_text(config.read_text() + other)
    await store.append(attempt("a1", begins_s=60).spans)
    missing = explain("--last", "--policy", "plain", expect=2)
    assert "there is no rollout of policy 'plain'" in " ".join(missing)
    assert explain("--policy", "plain")[0].startswith("there is no rollout")
    await store.append(attempt("b1", turns=(replace(ask, agent="helper"),)).spans)  # before the other one
    spans = [
        replace(span, attributes={**span.attributes, semconv.POLICY: "plain"})
        if span.scope == semconv.GATEWAY_SCOPE
        else span
        for span in attempt("c1", turns=(replace(ask, agent="helper"),)).spans
    ]
    assert explain("--last", "--policy", "math")[0].startswith("rollout r-a1 ")
    await store.append(spans)
    assert explain("--last", "--policy", "plain")[0].startswith("rollout r-c1 ")
    assert explain("--last", "--policy", "math")[0].startswith("rollout r-a1 ")
    listed = " ".join(explain("--policy", "plain"))
    assert "r-c1" in listed
    assert "r-a1" not in listed


def test_several_rollouts_are_one_line_each(trained, explain):
    expected = [
        "rollout r-a1 is trained: step 1, 2 calls, 5 sampled tokens",
        "rollout r-b1 is trained: step 1, 1 call, 1 sampled token",
    ]
    assert explain("r-*") == expected
    assert explain("2*3") == expected  # the task


def test_one_rollout_is_drawn_at_a_time(trained, explain, tmp_path):
    page = tmp_path / "tree.html"
    assert "'r-*' names 2 rollouts, and one is drawn at a time" in " ".join(
        explain("r-*", "--html", str(page), expect=2)
    )
    assert not page.exists()


def test_a_folder_is_not_drawn_over(trained, explain, tmp_path):
    (tmp_path / "pages").mkdir()
    assert f"{tmp_path / 'pages'} cannot be written: Is a directory" in " ".join(
        explain("r-a1", "--html", str(tmp_path / "pages"), expect=2)
    )
    assert not list(tmp_path.glob("*.partial"))


def test_the_last_one(trained, explain):
    assert explain("--last")[0].startswith("rollout r-b1 is trained")


def test_without_a_name_the_newest_are_listed(trained, explain):
    lines = explain()
    assert [line.split()[0] for line in lines[1:3]] == ["r-b1", "r-a1"]
    assert lines[1].split()[-2:] == ["succeeded", "1"]


async def test_only_rollouts_in_which_an_agent_spoke(store, attempt, ask, explain):
    await store.append(attempt("a1", begins_s=60).spans)
    await store.append(attempt("c1", turns=(replace(ask, agent="helper"),)).spans)
    listed = {agent: " ".join(explain("--agent", agent)) for agent in ("helper", "sol*", "nobody")}
    assert [("r-a1" in said, "r-c1" in said) for said in listed.values()] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert explain("--last", "--agent", "helper")[0].startswith("rollout r-c1 ")
    assert explain("r-*", "--agent", "solver")[0].startswith("rollout r-a1 ")
    said = " ".join(explain("r-a1", "--agent", "helper", expect=2))
    assert "agent 'helper' made no call in rollout 'r-a1'; see `lightning-trainer agents`" in said
    assert "agent 'nobody' made no call in the newest 500" in " ".join(explain("--last", "--agent", "nobody", expect=2))


def test_an_unknown_name_is_one_sentence_with_the_nearest(trained, explain):
    said = " ".join(explain("r-a7", expect=2))
    assert "there is no rollout, attempt or task 'r-a7' in the store" in said
    assert "the nearest are r-a1" in said


def test_an_empty_store_is_one_sentence(store, explain):
    assert "none of its spans names one, with lightning.rollout.id" in explain()[0]
    assert "none of its spans names one" in " ".join(explain("--last", expect=2))


async def test_spans_of_a_program_without_a_rollout_say_how_one_is_named(store, recorded, explain):
    # Before: "there is no rollout in the store yet", while `agents` listed the calls
    await store.append(recorded("openinference"))
    assert explain()[0].endswith("none of its spans names one, with lightning.rollout.id and lightning.attempt.id")


def test_a_configuration_of_another_policy_is_one_sentence(trained, folder, explain):
    text = (folder / "lightning.toml").read_text()
    (folder / "lightning.toml").write_text(text.replace('"math"', '"physics"'))
    assert "a step of policy 'math' took this rollout" in " ".join(explain("r-a1", expect=2))


async def test_an_evaluation_is_not_trained_and_nothing_is_wrong(store, explain, attempt):
    await store.append(attempt("a1", mode="evaluate").spans)
    lines = explain("r-a1")
    assert lines[0].startswith("rollout r-a1 is not trained: evaluation: attempt a1 was made with mode")
    assert "also" not in lines


async def test_what_was_recorded_for_a_dataset_is_not_trained_and_nothing_is_wrong(store, explain, attempt):
    await store.append(attempt("a1", mode="record").spans)
    assert explain("r-a1")[0].startswith(
        'rollout r-a1 is not trained: recorded: attempt a1 was made with mode "record": datasets are made from it'
    )
    assert explain()[1].split()[-1] == "recorded"


async def test_a_baseline_is_not_trained_and_nothing_is_wrong(store, explain, attempt):
    await store.append(attempt("a1", mode="baseline").spans)
    first = explain("r-a1")[0]
    assert first.startswith(
        'rollout r-a1 is not trained: baseline: attempt a1 was made with mode "baseline": its reward'
    )
    assert explain()[1].split()[-1] == "baseline"


async def test_under_remax_a_full_group_waits_for_its_baseline(store, folder, explain, attempt):
    with (folder / "lightning.toml").open("a") as config:
        config.write('algorithm = { advantage = "remax" }\n')
    for number in range(4):
        await store.append(attempt(f"a{number}", reward=float(number)).spans)
    assert "no baseline: group g is full but for its baseline" in explain("r-a1")[0]
    await store.append(attempt("greedy", mode="baseline", reward=0.5).spans)
    first = explain("r-a1")[0]
    assert "waiting: group g is full" in first
    assert "(there are 1)" in first


async def test_the_stage_of_the_next_step_says_what_a_group_waits_for(store, folder, explain, attempt):
    stage = '[[policy.stage]]\nalgorithm = { advantage = "remax" }\nsteps = 3\n'
    with (folder / "lightning.toml").open("a") as config:
        config.write(stage)
    for number in range(4):
        await store.append(attempt(f"a{number}", reward=float(number)).spans)
    assert "no baseline: group g is full but for its baseline" in explain("r-a1")[0]


async def test_a_step_without_a_baseline(store, folder, take_step, explain, attempt):
    with (folder / "lightning.toml").open("a") as config:
        config.write('algorithm = { advantage = "remax" }\n')
    await store.append([*attempt("a1").spans, *attempt("b1", reward=0.0).spans])
    await take_step(["a1", "b1"])
    assert "is not trained: no baseline: group g (by lightning.group.id) has no baseline" in explain("r-a1")[0]


async def test_a_full_group_waits_for_a_step(store, explain, attempt):
    for number in range(4):
        await store.append(attempt(f"a{number}", reward=float(number)).spans)
    first = explain("r-a1")[0]
    assert "is not trained yet: waiting: group g is full, and a step starts when groups_per_step = 1" in first
    assert "(there are 1)" in first


async def test_what_holds_up_the_whole_attempt_goes_before_what_befell_one_of_its_calls(
    store, folder, explain, attempt, ask, finish
):
    (folder / "lightning.toml").write_text((folder / "lightning.toml").read_text() + "train = false\n")
    await store.append(attempt("a1", turns=(ask, replace(finish, complete=False))).spans)
    lines = explain("r-a1")
    assert "is not trained yet: train = false: policy math records and serves" in lines[0]
    assert any(line.startswith("- interrupted stream: call 2 ended early") for line in lines)


async def test_equal_rewards(store, take_step, explain, attempt):
    await store.append([*attempt("a1").spans, *attempt("b1").spans])
    await take_step(["a1", "b1"])
    first = explain("r-a1")[0]
    assert "is not trained: equal rewards: all 2 attempts of group g earned the same (1)" in first


async def test_the_others_of_a_group_are_named_with_their_reasons(store, take_step, explain, attempt):
    await store.append([*attempt("a1").spans, *attempt("b1", reward=None).spans])
    await take_step(["a1", "b1"])
    first = explain("r-a1")[0]
    assert "of the 2 attempts of group g only this one can be compared (b1: no reward)" in first


async def test_a_reward_that_came_after_the_step_is_not_called_trained(store, take_step, explain, attempt, ask):
    late = attempt("a1", reward=None)
    await store.append([*late.spans, *_loser(attempt, ask).spans])
    await take_step(["a1", "b1"])
    given = SpanEvent(semconv.EVALUATION_EVENT, 5, {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: 1.0})
    judged = Span(late.root().trace_id, "f" * 16, late.span_id("root"), "evaluate", 4, 6, late.ids, (given,))
    await store.append([judged])
    lines = explain("r-a1")
    assert "is not trained: changed since: 2 calls: Step 1 was built without the call" in lines[0]
    assert ["solver", "math@v3", "dropped", "5", "2", "changed_since"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("known", "cause", "row"),
    [
        ({"versions": {5}}, "is not trained: stale: 2 calls: More versions", "dropped 5 2 stale"),
        ({"vocabulary": 35}, "): not in vocabulary: 1 call: A token id is", "dropped 2 1 not_in_vocabulary"),
        ({"deviation_floor": 3.0}, "is not trained: low variance group: 2 calls", "masked 5 2 low_variance_group"),
    ],
)
async def test_what_only_the_daemon_knew_is_as_the_steps_ledger_has_it(
    store, take_step, explain, attempt, known, cause, row
):
    await store.append([*attempt("a1").spans, *attempt("b1", reward=0.0, begins_s=60).spans])
    await take_step(["a1", "b1"], **known)
    lines = explain("r-a1", columns=120)
    assert cause in lines[0]
    assert ["solver", "math@v3", *row.split()] in [line.split() for line in lines]


async def test_spans_of_a_rollout_that_name_no_attempt(store, explain, attempt):
    without = [replace(s, attributes=_less(s, semconv.ATTEMPT_ID, semconv.ROLLOUT_ROOT)) for s in attempt("a1").spans]
    await store.append(without)
    lines = explain("r-a1")
    assert lines[0].startswith("rollout r-a1 is not trained yet: no attempt: 2 calls: The call belongs to no attempt")


def _less(span: Span, *names: str) -> dict:
    return {name: value for name, value in span.attributes.items() if name not in names}


async def test_of_several_attempts_the_trained_one_is_told(store, take_step, explain, attempt, ask):
    second = attempt("a2", begins_s=30)
    second.ids[semconv.ROLLOUT_ID] = "r-a1"
    await store.append([*attempt("a1").spans, *second.spans, *_loser(attempt, ask).spans])
    await take_step(["a1", "b1"])
    lines = explain("r-a1")
    assert lines[0] == "rollout r-a1 is trained: step 1, 2 calls, 5 sampled tokens (attempt 1 of 2)"
    assert any("is not trained yet: group of one" in line for line in lines[1:])


async def test_an_attempt_that_made_no_call(store, explain, attempt):
    await store.append(attempt("a1", turns=()).spans)
    said = explain("r-a1")[0]
    assert "no calls: it has 1 span and no model call" in said
    assert "a cache of answers" in said
