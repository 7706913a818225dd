"""Before a step is built its judges are asked; one that fails or dawdles holds up nothing and is said in a sentence."""

import asyncio
import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lightning_instrumentation import semconv
from pydantic import TypeAdapter

from lightning_trainer.config import Config, DaemonConfig
from lightning_trainer.config.judges import JudgeConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.building import Builder
from lightning_trainer.daemon.rewards.judges import PolicyJudges, judges_at_work
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.recording import fingerprint_digest
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.metrics.row import group_metrics, judge_metrics
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.store.worklist.drops import drop
from lightning_trainer.types import RolloutMode

NO_ENGINES = engines_of(Config(), {}.__getitem__)
SCORES = "import json, sys; told = json.load(sys.stdin); "
BY_NAME = SCORES + "print(json.dumps({'score': float(told['attempt_id'] == 'a'), 'reason': 'by name'}))"
COUNTS = "open('asked', 'a').write('x'); "


@pytest.fixture
async def daemon(tmp_path, make_policy, attempt_spans):
    """``daemon(program, **settings)``: a builder over two ended attempts of one group, whose judge is the program."""
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        progress, sink = Progress(), NotifyingStore(store)
        stored = sink.watch("math", progress)
        rollbacks = RollbackRequests(wake=stored)
        for number, attempt in enumerate("ab"):
            await sink.append(attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number))
        contexts = []

        async def daemon(*programs, reward=None, algorithm=None, stage=(), **settings):
            base = {"kind": "program", "working_dir": str(tmp_path), "timeout_s": 60.0, **settings}
            configs = [
                {**base, "name": f"judge-{number}", "command": [sys.executable, "-S", "-c", program]}
                for number, program in enumerate(programs)
            ]
            judges = [TypeAdapter(JudgeConfig).validate_python(one) for one in configs]
            context = judges_at_work(judges, DaemonConfig(), store=store, sink=sink, engine_of=NO_ENGINES)
            contexts.append(context)
            rewarded = {"reward": reward or {"judge-0": 1.0}, "algorithm": algorithm or {}, "stage": stage}
            policy = make_policy(group_size=2, **rewarded)
            of_policy = PolicyJudges(policy, await context.__aenter__(), store=store, progress=progress)
            builder = Builder(
                policy, store=store, progress=progress, rollbacks=rollbacks, stored=stored, judges=of_policy
            )
            return builder, of_policy, store

        daemon.sink = sink
        yield daemon
        for context in contexts:
            await context.__aexit__(None, None, None)


async def test_a_step_gets_the_rewards_that_its_attempts_lack(daemon):
    builder, _, store = await daemon(BY_NAME)
    build = await builder.build(await store.ended_attempts(), 1)
    assert build.unscored == frozenset()
    assert build.rewards.of_attempts == {"a": 1.0, "b": 0.0}
    assert build.batch is not None
    evaluations = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert [(one.name, one.value, one.explanation, str(one.source).split(",")[0]) for one in evaluations] == [
        ("judge-0", 1.0, "by name", "judge judge-0 (program")
    ]


async def test_what_a_judge_writes_is_redacted_before_it_is_stored(daemon):
    key = "sk-proj-" + "Ab3dEf6hIj9kLm2n" * 3
    says = SCORES + f"print(json.dumps({{'score': 1.0, 'reason': 'it printed {key}'}}))"
    builder, _, store = await daemon(says)
    await builder.build(await store.ended_attempts(), 1)
    evaluations = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert [one.explanation for one in evaluations] == ["it printed [redacted key]"]


async def test_of_a_judge_that_nothing_is_compared_with_nothing_is_measured(daemon):
    _, of_policy, _ = await daemon(BY_NAME)
    assert await of_policy.metrics(1) == {}


async def test_who_has_the_reward_is_not_judged(daemon, tmp_path, reward_span):
    await daemon.sink.append([_named(reward_span(0.25, attempt="a"), "judge-0")])
    builder, _, store = await daemon(COUNTS + BY_NAME)
    build = await builder.build(await store.ended_attempts(), 1)
    assert build.rewards.of_attempts == {"a": 0.25, "b": 0.0}
    assert (tmp_path / "asked").read_text() == "x"


def _named(span, name):
    (event,) = span.events
    return replace(span, events=(replace(event, attributes={**event.attributes, semconv.EVALUATION_NAME: name}),))


async def test_several_judges_and_only_those_that_the_reward_names(daemon, tmp_path):
    builder, _, store = await daemon(
        BY_NAME, SCORES + "print(0.5)", COUNTS + "print(9)", reward={"judge-0": 1.0, "judge-1": 2.0}
    )
    build = await builder.build(await store.ended_attempts(), 1)
    assert build.rewards.of_attempts == {"a": 2.0, "b": 1.0}
    assert not (tmp_path / "asked").exists()


async def test_a_judge_that_fails_leaves_the_reward_missing_and_says_so(daemon):
    builder, _, store = await daemon(SCORES + "assert told['attempt_id'] == 'a', 'no idea'; print(1)")
    build = await builder.build(await store.ended_attempts(), 1)
    assert build.unscored == {"b"}
    (sentence,) = [one for one in builder._progress.problems if one.startswith("judge ")]
    assert sentence == (
        "judge judge-0 gave no reward to attempt b: it ended with exit status 1: AssertionError: no idea"
    )


async def test_a_failure_is_not_asked_about_again_in_the_same_step(daemon, tmp_path):
    builder, of_policy, store = await daemon(COUNTS + "print('no idea')")
    for _ in range(3):
        await builder.build(await store.ended_attempts(), 1)
    assert (tmp_path / "asked").read_text() == "xx"
    of_policy.taken(await store.ended_attempts())
    await builder.build(await store.ended_attempts(), 1)
    assert (tmp_path / "asked").read_text() == "xxxx"


async def test_a_step_waits_no_longer_than_it_is_told_to(daemon):
    builder, of_policy, store = await daemon("import time; time.sleep(600)", wait_s=0.5, timeout_s=600.0)
    began = time.monotonic()
    build = await builder.build(await store.ended_attempts(), 1)
    assert time.monotonic() - began < 60
    assert build.unscored == {"a", "b"}
    assert any("did not wait longer than wait_s = 0.5 for judge judge-0" in one for one in builder._progress.problems)
    await of_policy.close()


async def test_a_rollback_does_not_wait_for_a_judge(daemon):
    builder, of_policy, store = await daemon("import time; time.sleep(600)", timeout_s=600.0)
    building = asyncio.create_task(builder.build(await store.ended_attempts(), 1))
    while "waiting for judge judge-0 of 2 attempts" not in builder._progress.detail:
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(builder._rollbacks.ask(0))
    async with asyncio.timeout(60):
        assert await building is None
    builder._rollbacks.end()
    await asked
    await of_policy.close()


async def test_judging_begins_when_a_group_is_complete_and_not_when_the_step_is_built(daemon, tmp_path):
    builder, of_policy, store = await daemon(COUNTS + BY_NAME)
    attempts = await store.ended_attempts()
    of_policy.begin([attempts], 1)
    of_policy.begin([attempts], 1)
    while not (await store.spans_of_attempts(["a"]))[-1].name.startswith("evaluate"):
        await asyncio.sleep(0.02)
    build = await builder.build(attempts, 1)
    assert build.rewards.of_attempts == {"a": 1.0, "b": 0.0}
    assert (tmp_path / "asked").read_text() == "xx"


async def test_the_loop_asks_while_it_still_collects(daemon, collecting_loop, make_policy, tmp_path):
    """Two groups make a step; the one that is complete is judged while the other is waited for."""
    _, of_policy, store = await daemon(COUNTS + BY_NAME)
    loop = collecting_loop(store, make_policy(reward="judge-0", group_size=2, groups_per_step=2))
    loop.steps._judges = of_policy
    collecting = asyncio.create_task(loop.steps.next_attempts(2))
    while len(read_spans(await store.spans_of_attempts(["a", "b"])).evaluations) < 2:
        await asyncio.sleep(0.02)
    assert not collecting.done()
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting


async def test_what_is_not_of_the_next_step_is_not_judged_yet(daemon, collecting_loop, make_policy, attempt_spans):
    _, of_policy, store = await daemon(BY_NAME)
    for number, attempt in enumerate("cd"):
        await daemon.sink.append(attempt_spans(attempt, [1, 2], time.time_ns() + number, task="another"))
    loop = collecting_loop(store, make_policy(reward="judge-0", group_size=2, groups_per_step=1))
    loop.steps._judges = of_policy
    attempts = await loop.steps.next_attempts(1)
    assert {name for _, name in of_policy._asked} == {attempt.attempt_id for attempt in attempts} == {"a", "b"}


async def test_a_judge_of_groups_judges_all_of_a_group(daemon):
    scores = SCORES + "print(json.dumps({'scores': {a['attempt_id']: n for n, a in enumerate(told['attempts'])}}))"
    builder, _, store = await daemon(scores, whole_group=True)
    build = await builder.build(await store.ended_attempts(), 1)
    assert sorted(build.rewards.of_attempts.values()) == [0.0, 1.0]


async def test_a_group_that_grows_while_another_is_waited_for_is_not_judged_anew_each_time(
    daemon, tmp_path, attempt_spans
):
    scores = SCORES + "print(json.dumps({'scores': {a['attempt_id']: n for n, a in enumerate(told['attempts'])}}))"
    builder, of_policy, store = await daemon(COUNTS + scores, whole_group=True)
    of_policy.begin([await store.ended_attempts()], 1)
    for number, attempt in enumerate("cdef"):
        await daemon.sink.append(attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 20 + number))
        of_policy.begin([await store.ended_attempts()], 1)
    build = await builder.build(await store.ended_attempts(), 1)
    assert sorted(build.rewards.of_attempts.values()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert (tmp_path / "asked").read_text() == "xx", "when it was complete, and with those who came until the step"


@pytest.mark.process
async def test_an_answer_about_fewer_of_a_group_does_not_come_after_one_about_all(daemon, attempt_spans):
    slow = "import time; time.sleep(2.0 * (len(told['attempts']) == 2)); "
    scores = SCORES + slow + "print(json.dumps({'scores': {a['attempt_id']: 0.5 for a in told['attempts']}}))"
    builder, of_policy, store = await daemon(scores, whole_group=True)
    of_policy.begin([await store.ended_attempts()], 1)
    await daemon.sink.append(attempt_spans("c", [1, 2], time.time_ns() - 10**9 + 20))
    await builder.build(await store.ended_attempts(), 1)
    ends = {
        name: [one.time_ns for one in read_spans(await store.spans_of_attempts([name])).evaluations] for name in "ac"
    }
    assert len(ends["a"]) == 2, "the step waits for both"
    assert max(ends["a"]) == max(ends["c"])


async def test_a_key_that_is_not_there_is_said_at_once(tmp_path, make_policy, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    settings = {"name": "helpful", "kind": "group", "model": "m", "api_key_env": "NO_SUCH_KEY"}
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        config = TypeAdapter(JudgeConfig).validate_python(settings)
        async with judges_at_work([config], DaemonConfig(), store=store, sink=store, engine_of=NO_ENGINES) as judges:
            progress = Progress()
            PolicyJudges(make_policy(reward="helpful"), judges, store=store, progress=progress)
            assert progress.problems == [
                "the environment has no NO_SUCH_KEY, which api_key_env of judge 'helpful' names: set it where this runs"
            ]
            PolicyJudges(make_policy(), judges, store=store, progress=(other := Progress()))
            assert other.problems == []


async def test_what_nobody_has_thought_of_is_said_and_training_goes_on(daemon, monkeypatch):
    builder, of_policy, store = await daemon(BY_NAME)

    def units(*_):
        raise KeyError("surprise")

    monkeypatch.setattr(of_policy._judges["judge-0"], "units", units)
    build = await builder.build(await store.ended_attempts(), 1)
    assert build.unscored == {"a", "b"}
    assert any("judge judge-0 ended in an error" in one for one in builder._progress.problems)


def _scored(span, name, **by):
    return replace(_named(span, name), name=f"evaluate {name}", attributes={**span.attributes, **by})


@pytest.mark.process
async def test_a_judge_is_corrected_in_a_step_by_what_is_known_of_it(daemon, attempt_spans, reward_span):
    settings = {"checked_by": ["score"], "floor": 0.01}
    reward = {"judge-0": {"weight": 2.0, "correct": True}}
    builder, of_policy, store = await daemon(BY_NAME, reward=reward, **settings)
    by = {
        semconv.JUDGE_NAME: "judge-0",
        semconv.JUDGE_FINGERPRINT: fingerprint_digest(of_policy._judges["judge-0"].judge.config),
    }
    for number in range(80):
        right, said = float(number % 2), float(number % 8 != 0)  # 30 of 40 wrong ones are called right
        name = f"labeled-{number}"
        about = [
            _scored(reward_span(right, attempt=name), "score"),
            _scored(reward_span(said, attempt=name), "judge-0", **by),
        ]
        await daemon.sink.append([*attempt_spans(name, [1], 10 + number, task="other"), *about])
    mine = [one for one in await store.ended_attempts() if one.attempt_id in "ab"]
    build = await builder.build(mine, 1)
    shrunk = build.corrections["judge-0"].shrunk
    assert 0 < shrunk < 1
    assert build.rewards.of_attempts == {
        "a": pytest.approx(2 * shrunk * (1 - 0.75) / 0.25),
        "b": pytest.approx(2 * shrunk * (0 - 0.75) / 0.25),
    }
    assert judge_metrics(build.corrections) == {
        "judge/judge-0/weight": shrunk,
        "judge/judge-0/false_positives": 0.75,
        "judge/judge-0/false_negatives": 0.0,
    }
    measured = await of_policy.metrics(1)
    assert measured.pop("judge/judge-0/rank_agreement") == pytest.approx(0.378, abs=0.001)
    assert measured == {
        "judge/judge-0/labels": 80,
        "judge/judge-0/false_positives": 0.75,
        "judge/judge-0/false_negatives": 0.0,
    }
    refused, _, _ = await daemon(BY_NAME, reward=reward, checked_by=["score"], floor=0.9)
    build = await refused.build(mine, 1)
    assert build.batch is None
    assert any("judge judge-0 is not corrected and its reward counts as missing" in one for one in build.problems)
    assert judge_metrics(build.corrections) == {"judge/judge-0/weight": 0.0}


async def test_a_group_that_differs_less_than_earlier_steps_did_is_left_out(daemon):
    """Rewards 1 and 0: a deviation of 0.5. The moving average of earlier steps is 0.9 * 2.0 + 0.1 * 1.0 = 1.9."""
    builder, _, store = await daemon(BY_NAME, algorithm={"deviation_floor": 0.5})
    attempts = await store.ended_attempts()
    assert (await builder.build(attempts, 1)).batch is not None  # the first step has no floor
    for step, deviation in enumerate((2.0, 1.0), start=1):
        measured = {"reward/deviation": deviation}
        await store.assign(
            None, policy="math", step=step, attempt_ids=[], ledger=(), state=StepState.SKIPPED, metrics=measured
        )
    build = await builder.build(attempts, 3)
    assert build.batch is None
    assert build.deviation_floor == pytest.approx(0.95)
    assert [group.verdict for group in build.groups] == [Reason.LOW_VARIANCE_GROUP]
    assert group_metrics(build.groups)["reward/deviation"] == 0.5


async def test_a_stage_has_a_floor_of_its_own(daemon):
    """The rewards of the stage before it were on a scale of ten."""
    stages = [{"steps": 2, "algorithm": "grpo"}, {"algorithm": {"deviation_floor": 0.5}}]
    builder, _, store = await daemon(BY_NAME, stage=stages)
    for step in (1, 2):
        measured = {"reward/deviation": 5.0}
        await store.assign(
            None, policy="math", step=step, attempt_ids=[], ledger=(), state=StepState.SKIPPED, metrics=measured
        )
    build = await builder.build(await store.ended_attempts(), 3)
    assert (build.batch is not None, build.deviation_floor) == (True, 0.0)


async def test_what_somebody_took_out_is_not_judged(daemon, tmp_path):
    """It is in the step that accounts for its tokens, and whatever a judge says of it, it is not trained."""
    builder, _, store = await daemon(COUNTS + BY_NAME)
    await store.write(lambda connection: drop(connection, "r-b", reason="its tool was down"))
    attempts = await store.attempts()
    assert [one.mode for one in attempts] == [RolloutMode.TRAIN, RolloutMode.DROPPED]
    await builder.build(attempts, 1)
    assert (tmp_path / "asked").read_text() == "x"


@pytest.mark.parametrize("reward", ["shares", {"shares": 1.0, "outcome": 0.5}])
async def test_a_judge_whose_reward_another_one_shares_out_is_asked_before_it(
    tmp_path, make_policy, attempt_spans, monkeypatch, reward
):
    async def all_to_the_solver(*_, **__):
        return SimpleNamespace(shares=[SimpleNamespace(name="solver", share=1.0, reason="it did it alone")])

    monkeypatch.setattr("lightning_trainer.judges.kinds.agent_credit.ask", all_to_the_solver)
    slowly = SCORES + "import time; time.sleep(0.2); print(0.5 if told['attempt_id'] == 'a' else 0.25)"
    settings = [
        {"name": "shares", "kind": "agent_credit", "model": "m", "outcome": "outcome"},
        {"name": "outcome", "kind": "program", "command": [sys.executable, "-c", slowly]},
    ]
    said = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "It is 6."}]}])
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        for attempt in "ab":
            root, call = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9)
            call.attributes.update({semconv.INPUT_MESSAGES: said, semconv.OUTPUT_MESSAGES: said})
            await store.append([root, call])
        configs = [TypeAdapter(JudgeConfig).validate_python(one) for one in settings]
        async with judges_at_work(configs, DaemonConfig(), store=store, sink=store, engine_of=NO_ENGINES) as judges:
            progress = Progress()
            of_policy = PolicyJudges(make_policy(reward=reward), judges, store=store, progress=progress)
            await of_policy.wait(await store.ended_attempts(), 1, lambda: False)
            evaluations = read_spans(await store.spans_of_attempts(["a", "b"])).evaluations
            await of_policy.close()
    assert progress.problems == []
    assert {(one.attempt_id, one.value) for one in evaluations if one.agent == "solver"} == {("a", 0.5), ("b", 0.25)}
