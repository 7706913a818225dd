"""Verdicts in the store: found again by what was judged, told to be the judge's, and never trained as a call."""

import asyncio
import json
import random
import re
import threading
import time
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges import system_prompts
from lightning_trainer.judges.judging import Judging
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.reliability.report import judge_report
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.rewards.reward_table import read_outcomes
from lightning_trainer.store import SqliteStore

GOOD = {"verdicts": [{"criterion": name, "reason": "so", "verdict": True} for name in ("right", "polite")]}


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "store.sqlite") as opened:
        yield opened


async def judge(store, config, names, sink=None, **options):
    """What another process would do: nothing is kept but the store."""
    judging = Judging(make_judge(config, engines_of(Config(), {}.__getitem__)), sink or store, store.spans_of_trace)
    try:
        attempts = await store.attempts(attempt_ids=names)
        return await judging.judge_group(await store.spans_of_attempts(names), attempts, Budget(), **options)
    finally:
        await judging.close()


async def test_the_same_question_is_answered_from_the_store(store, script, judge_config, attempt_to_judge):
    for name in "ab":
        await store.append(attempt_to_judge(name))
    script.answers = [GOOD]
    config = judge_config("rubric")
    assert [one.remembered for one in await judge(store, config, ["a"])] == [False]
    assert await judge(store, config, ["a"]) == []  # it has its reward
    (other,) = await judge(store, config, ["b"])
    assert (other.value, other.remembered) == (1.0, True)
    assert len(script.bodies) == 1
    await judge(store, config, ["a"], again=True)
    assert len(script.bodies) == 2


@pytest.mark.parametrize(
    "settings", [{"model": "judge-2"}, {"instructions": "Be strict."}, {"scale": [0, 10]}, {"max_chars": 600}]
)
async def test_another_judge_is_asked_anew(store, script, judge_config, attempt_to_judge, settings):
    for name in "ab":
        await store.append(attempt_to_judge(name))
    script.answers = [GOOD]
    await judge(store, judge_config("rubric"), ["a"])
    await judge(store, judge_config("rubric", **settings), ["b"])
    assert len(script.bodies) > 1


async def test_a_judge_that_tells_its_model_other_words_is_asked_anew(
    store, script, judge_config, attempt_to_judge, monkeypatch
):
    for name in "ab":
        await store.append(attempt_to_judge(name))
    script.answers = [GOOD]
    await judge(store, judge_config("rubric"), ["a"])
    monkeypatch.setitem(system_prompts._TASKS, "rubric", "You check.")
    await judge(store, judge_config("rubric"), ["b"])
    assert len(script.bodies) == 2


async def test_what_changes_nothing_about_a_verdict_is_no_other_judge(store, script, judge_config, attempt_to_judge):
    for name in "ab":
        await store.append(attempt_to_judge(name))
    script.answers = [GOOD]
    await judge(store, judge_config("rubric"), ["a"])
    (one,) = await judge(store, judge_config("rubric", timeout_s=5, retries=0, budget={"calls": 9}), ["b"])
    assert one.remembered


async def test_a_failure_is_followed_by_a_verdict(store, script, judge_config, attempt_to_judge):
    await store.append(attempt_to_judge("a"))
    script.answers = ["no idea", GOOD]
    config = judge_config("rubric", retries=0)
    assert [one.value for one in await judge(store, config, ["a"])] == [None]
    assert [one.value for one in await judge(store, config, ["a"])] == [1.0]
    evaluations = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert [one.value for one in evaluations] == [None, 1.0]
    assert {one.source for one in evaluations} == {"judge helpful (rubric, judge-1)"}


def answers_of_a_group(text):
    """Half of the scale to each, of a judge of kind ``group``; a tie of a ``pairwise`` one."""
    codes = re.findall(r"<attempt (\w+)>\n", json.loads(text)[1]["content"])
    scores = [{"code": code, "reason": "", "score": 0.5} for code in codes]
    return {"scores": scores, "reason": "alike", "better": "tie"}


async def test_a_group_that_grew_is_judged_as_a_whole_again(store, script, judge_config, attempt_to_judge):
    script.answers = [answers_of_a_group]
    config = judge_config("group")
    for number, name in enumerate("abc"):
        await store.append(attempt_to_judge(name, [f"It is {number}."]))
    assert len(await judge(store, config, ["a", "b"])) == 2
    assert len(await judge(store, config, ["a", "b", "c"])) == 3
    assert len(script.bodies) == 2


async def test_rewards_of_the_judge_as_it_was_are_lacking_where_they_would_mix(
    store, script, judge_config, attempt_to_judge
):
    script.answers = [GOOD]
    for number, name in enumerate("abc"):
        await store.append(attempt_to_judge(name, [f"It is {number}."]))
    await judge(store, judge_config("rubric"), ["a", "b"])
    stricter = judge_config("rubric", instructions="Be strict.")
    assert {one.attempt_id for one in await judge(store, stricter, ["a", "b", "c"])} == {"c"}
    assert {one.attempt_id for one in await judge(store, stricter, ["a", "b", "c"], renew=True)} == {"a", "b"}
    assert await judge(store, stricter, ["a", "b", "c"], renew=True) == []


async def rewards(store, names):
    """What training reads in the store, by attempt."""
    read = read_spans(await store.spans_of_attempts(names))
    attempts = {one.attempt_id: one for one in await store.attempts(attempt_ids=names)}
    policy = PolicyConfig(name="math", agents=("*",), model="random:tiny", reward="helpful")
    return read_outcomes(read.evaluations, read.calls, attempts, policy)


async def test_a_judge_that_is_set_as_it_was_before_counts_again(store, script, judge_config, attempt_to_judge):
    """It is not asked again, and that it repeats itself is not counted."""
    await store.append(attempt_to_judge("a"))
    config, stricter = judge_config("rubric"), judge_config("rubric", instructions="Be strict.")
    bad = {"verdicts": [{**one, "verdict": False} for one in GOOD["verdicts"]]}
    script.answers = [GOOD, bad]
    for by, value in ((config, 1.0), (stricter, 0.0), (config, 1.0), (stricter, 0.0)):
        assert [one.value for one in await judge(store, by, ["a"], renew=True)] == [value]
        assert await rewards(store, ["a"]) == {"a": value}
        assert await judge(store, by, ["a"], renew=True) == []
    assert len(script.bodies) == 2
    report = await store.scan(lambda connection: judge_report(connection, config))
    assert (report.judged, report.same_again) == (1, None)
    await judge(store, config, ["a"], again=True)
    report = await store.scan(lambda connection: judge_report(connection, config))
    assert report.same_again is not None
    assert (report.same_again.value, report.same_again.count) == (0.0, 1)


class Comparing:
    """Answers of a ``pairwise`` judge, by the last digit of what attempts answered."""

    def __init__(self, better, unusable=""):
        self.better = better
        self.unusable = unusable

    def __call__(self, text):
        blocks = re.findall(r"<attempt (\w+)>\n(.*?)</attempt", json.loads(text)[1]["content"], re.DOTALL)
        codes = {digit: code for code, shown in blocks for digit in re.findall(r"It is (\d)", shown)}
        unusable = self.unusable in codes
        return {"reason": "", "better": "?" if unusable else codes[self.better(codes)]}


async def test_a_group_that_is_judged_again_has_scores_of_one_question(store, script, judge_config, attempt_to_judge):
    names = ["a7", "a8", "a9"]
    for name in names:
        await store.append(attempt_to_judge(name, [f"It is {name[1]}."]))
    config = judge_config("pairwise", retries=0)
    script.answers = [Comparing(max, unusable="9")]
    assert [one.attempt_id for one in await judge(store, config, names) if one.value is None] == ["a9"]
    script.answers = [Comparing(min)]
    said = {one.attempt_id: one.value or 0.0 for one in await judge(store, config, names)}
    assert said["a7"] > said["a8"] > said["a9"]
    assert await rewards(store, names) == said


async def test_a_group_keeps_its_scores_where_another_question_gives_fewer(
    store, script, judge_config, attempt_to_judge
):
    names = ["a7", "a8", "a9"]
    for name in names:
        await store.append(attempt_to_judge(name, [f"It is {name[1]}."]))
    script.answers = [Comparing(max)]
    before = {one.attempt_id: one.value for one in await judge(store, judge_config("pairwise", retries=0), names)}
    script.answers = [Comparing(min, unusable="9")]
    judged = await judge(store, judge_config("pairwise", retries=0), names, again=True)
    assert [one.value for one in judged] == [None, None, None]
    assert sum("a9 got no score this time" in one.reason for one in judged) == 2
    assert await rewards(store, names) == before


@pytest.mark.parametrize("kind", ["group", "pairwise", "rubric"])
async def test_what_somebody_else_gave_stays(store, script, judge_config, attempt_to_judge, reward_span, kind):
    """Also when the group grows, and when the judge is asked again."""
    script.answers = [GOOD] if kind == "rubric" else [answers_of_a_group]
    config = judge_config(kind)
    for number, name in enumerate("abc"):
        await store.append(attempt_to_judge(name, [f"It is {number}."]))
    await judge(store, config, ["a", "b"])
    given = reward_span(0.9, attempt="a")
    event = replace(given.events[0], attributes={**given.events[0].attributes, semconv.EVALUATION_NAME: "helpful"})
    await store.append([replace(given, events=(event,))])
    assert {one.attempt_id for one in await judge(store, config, ["a", "b", "c"])} - {"b"} == {"c"}
    assert {one.attempt_id for one in await judge(store, config, ["a", "b", "c"], again=True)} == {"b", "c"}
    evaluations = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert [one.value for one in evaluations if one.judge is not None] == [1.0 if kind == "rubric" else 0.5]


async def test_what_a_person_gives_while_the_judge_is_asked_stays(
    store, script, judge_config, attempt_to_judge, reward_span
):
    asked, answered = threading.Event(), threading.Event()

    def slowly(text):
        asked.set()
        answered.wait(10)
        return GOOD

    script.answers = [slowly]
    await store.append(attempt_to_judge("a"))
    judging = asyncio.create_task(judge(store, judge_config("rubric"), ["a"]))
    await asyncio.to_thread(asked.wait, 10)
    given = reward_span(0.25, attempt="a")
    event = replace(given.events[0], time_ns=time.time_ns())
    await store.append(
        [replace(given, events=(replace(event, attributes={**event.attributes, semconv.EVALUATION_NAME: "helpful"}),))]
    )
    answered.set()
    assert [one.value for one in await judging] == [1.0]
    assert await rewards(store, ["a"]) == {"a": 0.25}


class Failing:
    """A sink that refuses what it is given first."""

    def __init__(self, store):
        self.store = store
        self.given = 0

    async def append(self, spans):
        self.given += 1
        if self.given == 1:
            raise StoreError("the disk is full")
        return await self.store.append(spans)


async def test_verdicts_that_cannot_be_stored_are_one_error_of_the_store_and_cost_no_other_one(
    store, script, judge_config, attempt_to_judge
):
    for name in "abc":
        await store.append(attempt_to_judge(name, [f"It is {name}."]))
    script.answers = [GOOD]
    sink = Failing(store)
    with pytest.raises(StoreError, match="the disk is full"):
        await judge(store, judge_config("rubric"), list("abc"), sink=sink)
    assert sink.given == 3
    assert list((await rewards(store, list("abc"))).values()) == [1.0, 1.0]


async def test_a_caller_that_is_canceled_leaves_nothing_under_way(store, script, judge_config, attempt_to_judge):
    for name in "ab":
        await store.append(attempt_to_judge(name, [f"It is {name}."]))
    script.answers = [30.0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await judge(store, judge_config("rubric"), ["a", "b"])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_verdict_is_no_call_and_nothing_of_it_is_trained(store, script, judge_config, attempt_to_judge):
    await store.append(attempt_to_judge("a"))
    script.answers = [GOOD]
    before = read_spans(await store.spans_of_attempts(["a"]))
    await judge(store, judge_config("rubric"), ["a"])
    after = read_spans(await store.spans_of_attempts(["a"]))
    assert (after.calls, after.attempts, after.problems) == (before.calls, before.attempts, before.problems)
    policy = PolicyConfig(name="math", agents=("*",), model="random:tiny", reward="helpful")
    build = build_batch(after.calls, await store.attempts(), after.evaluations, policy, 1)
    assert build.rewards.of_attempts == {"a": 1.0}
    assert sum(row.calls for row in build.ledger) == 1


async def test_what_a_question_cost_is_a_span_of_the_judges_own(store, script, judge_config, attempt_to_judge):
    await store.append(attempt_to_judge("a"))
    script.answers = ["no idea", GOOD]
    await judge(store, judge_config("rubric"), ["a"])
    (spent,) = [one for one in await store.spans_of_attempts(["a"]) if one.name == "judge helpful"]
    names = (semconv.JUDGE_CALLS, semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.ATTEMPT_ID)
    assert [spent.attributes.get(name) for name in names] == [2, 200, 40, None]


def favors_the_first(text):
    """0.9 to the attempt that is shown first, and 0.5 to each of the others."""
    codes = re.findall(r"<attempt (\w+)>\n", json.loads(text)[1]["content"])
    scores = [{"code": code, "reason": "", "score": 0.5 if place else 0.9} for place, code in enumerate(codes)]
    return {"scores": scores}


async def test_a_judge_that_favors_what_is_shown_first_is_found_out_by_shuffling(
    store, script, judge_config, attempt_to_judge, monkeypatch
):
    """Three of the four attempts are shown first at some time, and differ by 0.4; the other one differs by nothing."""
    monkeypatch.setattr("lightning_trainer.judges.judging.random", random.Random(13))
    script.answers = [favors_the_first]
    config = judge_config("group")
    for number, name in enumerate("abcd"):
        await store.append(attempt_to_judge(name, [f"It is {number}."]))
    await judge(store, config, list("abcd"))
    for _ in range(11):
        await judge(store, config, list("abcd"), again=True, shuffle=True)
    report = await store.scan(lambda connection: judge_report(connection, config))
    found = report.earlier_is_better
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.104, 0.496), abs=0.001)
    assert found.count == 4


@pytest.mark.parametrize("kind", ["group", "pairwise"])
async def test_what_cannot_be_read_keeps_no_other_from_being_compared(
    store, script, judge_config, attempt_to_judge, kind
):
    """An attempt that broke off before its first call, and one whose words were not recorded."""
    script.answers = [answers_of_a_group]
    for number, name in enumerate("ab"):
        await store.append(attempt_to_judge(name, [f"It is {number}."]))
    await store.append(attempt_to_judge("c", [], error="its tool was down"))
    await store.append(attempt_to_judge("d", content=False))
    config = judge_config(kind)
    judged = {one.attempt_id: one for one in await judge(store, config, list("abcd"))}
    assert {name: one.value for name, one in judged.items()} == {"a": 0.5, "b": 0.5, "c": None, "d": None}
    assert judged["c"].reason == "attempt c cannot be read: no model call of it was recorded"
    assert judged["d"].reason == "attempt d cannot be read: the words of its calls were not recorded"
    asked = len(script.bodies)
    assert {one.attempt_id for one in await judge(store, config, list("abcd"))} == {"c", "d"}
    assert len(script.bodies) == asked, "those that have their rewards are not judged again for those that cannot be"
