"""What no step wants is let go and costs nothing; looking at what waits takes a small share of the time."""

import asyncio
import time

import pytest

from lightning_trainer.daemon.loop import steps
from lightning_trainer.daemon.loop.worklist import Worklist
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.samples.credit.group_collector import Arrivals
from lightning_trainer.store import SqliteStore


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        yield store


async def _waited_for(store: SqliteStore, seconds: float) -> None:
    await store.write(lambda c: c.execute("UPDATE waiting SET since_ns = since_ns - ?", (int(seconds * 1e9),)))


async def test_attempts_of_other_policies_and_lonely_baselines_are_let_go_after_a_while(
    store, make_policy, attempt_spans, collecting_loop
):
    policy = make_policy(group_size=3, group_timeout_s=60.0, algorithm={"advantage": "remax"})
    loop = collecting_loop(store, policy)
    loop.steps._worklist = worklist = Worklist(policy, store=store, progress=loop._progress, one_of_several=True)
    now_ns = time.time_ns()
    await worklist.collect(True)
    for attempt in ("mine", "mine-too"):
        await store.append(attempt_spans(attempt, [1, 2], now_ns, task="m"))
    others = [span for span in attempt_spans("theirs", [1, 2], now_ns, task="t") if span.scope != "lightning.gateway"]
    await store.append(others)
    await worklist.collect(True)
    assert worklist.waiting == 3
    await _waited_for(store, 61)
    await worklist.collect(True)
    await worklist.collect(True)
    assert worklist.waiting == 2, "what the policy had a part in waits as long as its group does"
    await store.append(attempt_spans("late", [1, 2], now_ns, task="t"))
    await worklist.collect(True)
    assert worklist.waiting == 4, "the policy answered a call of the group after all"


async def test_a_single_attempt_rests_until_another_one_of_its_task_comes(store, make_policy, attempt_spans):
    policy = make_policy(group_size=3, group_timeout_s=60.0)
    worklist = Worklist(policy, store=store, progress=Progress())
    long_ago_ns = time.time_ns() - 120 * 10**9
    await worklist.collect(False)
    await store.append(attempt_spans("a1", [1, 2], long_ago_ns, task="often"))
    await store.append(attempt_spans("b1", [1, 2], long_ago_ns, task="once"))
    await store.append(attempt_spans("c1", [1, 2], long_ago_ns, task="given", group="run/step-1/given"))
    await _waited_for(store, 61)
    worklist._arrivals = Arrivals(0)
    ready = (await worklist.collect(False)).ready
    assert [group for group, _ in ready] == ["run/step-1/given"], "who named a group waits for it to be taken"
    await worklist.collect(False)
    assert worklist.waiting == 1
    await store.append(attempt_spans("a2", [1, 2], long_ago_ns, task="often"))
    await worklist.collect(False)
    assert worklist.waiting == 3


@pytest.mark.long
async def test_a_loop_looks_as_seldom_as_looking_is_dear(store, make_policy, collecting_loop, monkeypatch):
    monkeypatch.setattr(steps, "_LOOK_AGAIN_S", 0.01)
    loop = collecting_loop(store, make_policy(group_size=2, groups_per_step=1))
    collect, looks = loop.steps.collect, []

    async def dear():
        began = time.monotonic()
        await asyncio.sleep(0.05)
        found = await collect()
        looks.append(time.monotonic() - began)
        return found

    monkeypatch.setattr(loop.steps, "collect", dear)
    waiting = asyncio.create_task(loop.steps.next_attempts(1))
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        loop.steps._stored.set()  # something comes all the time, and none of it makes a step
        await asyncio.sleep(0.01)
    waiting.cancel()
    assert len(looks) >= 2
    assert sum(looks) < 0.4 * (time.monotonic() - began)


async def test_nothing_that_was_taken_is_looked_at_again(store, make_policy, attempt_spans, collecting_loop):
    loop = collecting_loop(store, make_policy(group_size=2, groups_per_step=1))
    await loop.steps.collect()
    for number in range(20):
        await store.append(attempt_spans(f"a{number}", [1, 2], time.time_ns() - 10**9, task=f"t{number // 2}"))
    await loop.steps.collect()
    assert loop.steps._worklist.waiting == 20
    await store.assign(
        None, policy="math", step=1, attempt_ids=[f"a{n}" for n in range(20)], ledger=[], state="skipped"
    )
    await loop.steps.collect()
    assert loop.steps._worklist.waiting == 0
