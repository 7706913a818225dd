import pytest

from lightning_trainer.daemon.loop.worklist import Grouping
from lightning_trainer.store import SqliteStore


@pytest.fixture
async def store(tmp_path, attempt_spans):
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        for number, (attempt, prompt) in enumerate((("a", [1, 2]), ("b", [3]), ("c", [1, 2]))):
            await store.append(attempt_spans(attempt, prompt, 10 * number + 10))
        yield store


async def test_attempts_of_one_first_prompt_are_one_group(store, make_policy):
    grouping = Grouping(make_policy(group_by="prompt"), store)
    groups = {
        attempt.attempt_id: attempt.group_id for attempt in await grouping.regrouped(await store.ended_attempts())
    }
    assert groups["a"] == groups["c"] != groups["b"]


async def test_spans_are_read_once_an_attempt(store, make_policy, monkeypatch, attempt_spans):
    asked: list[list[str]] = []
    read = store.spans_of_attempts

    async def counting(attempt_ids):
        asked.append(list(attempt_ids))
        return await read(attempt_ids)

    monkeypatch.setattr(store, "spans_of_attempts", counting)
    grouping = Grouping(make_policy(group_by="prompt"), store)
    first = await grouping.regrouped(await store.ended_attempts())
    await store.append(attempt_spans("d", [3], 90))
    again = await grouping.regrouped(await store.ended_attempts())
    assert again[: len(first)] == first
    assert asked == [["a", "b", "c"], ["d"]]


async def test_other_groupings_read_nothing(store, make_policy, monkeypatch):
    monkeypatch.setattr(store, "spans_of_attempts", None)
    attempts = await store.ended_attempts()
    assert await Grouping(make_policy(), store).regrouped(attempts) == attempts
    regrouped = await Grouping(make_policy(group_by="task"), store).regrouped(attempts)
    assert [attempt.group_id for attempt in regrouped] == [attempt.task_id for attempt in attempts]
