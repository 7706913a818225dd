"""Which attempts ``lightning-trainer judge`` judges, and what it compares them with."""

import asyncio
import json
import sys
import time

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.daemon.rewards.chosen import choose
from lightning_trainer.errors import StoreError
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables.rollouts import select_expired
from lightning_trainer.store.worklist.drops import drop
from lightning_trainer.store.worklist.forgetting import forget_rollout


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as opened:
        yield opened


@pytest.fixture
def attempt(attempt_spans):
    """Make an attempt in a group, and with a task, of its own."""

    def make(name, prompt, number, *, task=None, mode=None):
        spans = attempt_spans(name, prompt, 10**18 + 100 * number, task=task or f"task-{name}")
        for span in spans:
            span.attributes[semconv.GROUP_ID] = f"group-{name}"
            if mode is not None:
                span.attributes[semconv.ROLLOUT_MODE] = mode
        return spans

    return make


async def groups(store, *names, since=None, whole=True, policy=None):
    found = await store.scan(lambda connection: choose(connection, names, since, whole=whole, policy=policy))
    return [[one.attempt_id for one in group] for group in found.groups], found.left_out


async def test_a_group_is_what_the_judges_policy_asks_for(store, attempt, make_policy):
    await store.append([*attempt("a", [1], 1, task="t"), *attempt("b", [1], 2, task="t"), *attempt("c", [1, 2], 3)])
    apart = [["a"], ["b"], ["c"]]
    assert await groups(store, since="2000-01-01") == (apart, ())
    assert await groups(store, since="2000-01-01", policy=make_policy()) == (apart, ())
    for group_by in ("task", "prompt"):
        policy = make_policy(group_by=group_by)
        assert await groups(store, since="2000-01-01", policy=policy) == ([["a", "b"], ["c"]], ())
    assert await groups(store, "r-a", policy=make_policy(group_by="task")) == ([["a", "b"]], ())


async def test_what_was_deleted_is_left_out_and_said(store, attempt):
    await store.append([*attempt("a", [1], 1), *attempt("b", [1], 2), *attempt("c", [1], 3)])
    await store.write(lambda connection: forget_rollout(connection, "r-b", now_ns=time.time_ns()))
    assert await store.scan(lambda connection: select_expired(connection, "b")) is not None
    said = "1 attempt left out, of which the spans were deleted"
    for whole in (True, False):
        assert await groups(store, since="2000-01-01", whole=whole) == ([["a"], ["c"]], (said,))
    with pytest.raises(StoreError, match=f"there is no attempt named r-b that has ended; {said}; see"):
        await groups(store, "r-b")


@pytest.mark.parametrize("mode", ["retried", "shadow", "dropped"])
async def test_what_is_never_trained_is_judged_only_by_its_own_name(store, attempt, mode):
    asked = None if mode == "dropped" else mode
    await store.append([*attempt("a", [1], 1, task="t"), *attempt("b", [1], 2, task="t", mode=asked)])
    for span in (spans := attempt("c", [1], 3, task="t")):
        span.attributes[semconv.GROUP_ID] = "group-b"
    await store.append(spans)
    if mode == "dropped":
        await store.write(lambda connection: drop(connection, "r-b", reason="wrong"))
    said = "1 left out that were dropped, retried or a shadow's: name each to have it judged"
    for names, since in (((), "2000-01-01"), (("t",), None)):
        assert await groups(store, *names, since=since) == ([["a"], ["c"]], (said,))
    assert await groups(store, "r-c") == ([["c"]], ()), "nor is it among the others of a group"
    assert await groups(store, "b", whole=False) == ([["b"]], ())


def test_a_forgotten_rollout_is_not_in_the_table_and_makes_no_failure(attempt, tmp_path, monkeypatch):
    async def record():
        async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
            await store.append([*attempt("a", [1], 1), *attempt("b", [1], 2)])
            await store.write(lambda connection: forget_rollout(connection, "r-b", now_ns=time.time_ns()))

    asyncio.run(record())
    (tmp_path / "ones.py").write_text("print('{\"score\": 1}')")
    command = json.dumps([sys.executable, "ones.py"])
    (tmp_path / "lightning.toml").write_text(f'[[judge]]\nname = "ones"\nkind = "program"\ncommand = {command}\n')
    monkeypatch.chdir(tmp_path)
    arguments = ["judge", "--judge", "ones", "--since", "2000-01-01"]
    said = "1 attempt left out, of which the spans were deleted"
    dry = CliRunner().invoke(app, [*arguments, "--dry-run"]).output
    assert "about 1 attempt:" in dry
    assert said in dry
    told = json.loads(CliRunner().invoke(app, [*arguments, "--dry-run", "--json"]).output)
    assert (told["attempts"], told["left_out"]) == (1, [said])
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert f"gave 1 of 1 attempts a reward; {said}" in done.output
    assert "task-b" not in done.output
