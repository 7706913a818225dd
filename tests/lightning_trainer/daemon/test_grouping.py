from array import array

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.daemon.grouping import Grouping
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span


def _spans(attempt: str, prompt: list[int], start: int) -> list[Span]:
    own = {semconv.ROLLOUT_ID: f"r-{attempt}", semconv.ATTEMPT_ID: attempt, semconv.AGENT_NAME: "solver"}
    tokens = {
        semconv.OPERATION: semconv.CHAT,
        semconv.PROMPT_TOKEN_IDS: array("i", prompt).tobytes(),
        semconv.CHOICES: 1,
        semconv.response_token_ids(0): array("i", [7]).tobytes(),
    }
    root = Span(
        f"{start:032x}", f"{start:016x}", None, "rollout", start, start + 5, {**own, semconv.ROLLOUT_ROOT: True}
    )
    call = {**own, **tokens}
    return [root, Span(root.trace_id, f"{start + 1:016x}", root.span_id, "chat", start + 1, start + 2, call)]


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        for number, (attempt, prompt) in enumerate((("a", [1, 2]), ("b", [3]), ("c", [1, 2]))):
            await store.append(_spans(attempt, prompt, 10 * number + 10))
        yield store


async def test_attempts_of_one_first_prompt_are_one_group(store, make_policy):
    grouping = Grouping(make_policy(group_by="prompt"), store)
    groups = {
        attempt.attempt_id: attempt.group_id for attempt in await grouping.regrouped(await store.ended_attempts())
    }
    assert groups["a"] == groups["c"] != groups["b"]


async def test_spans_are_read_once_an_attempt(store, make_policy, monkeypatch):
    asked: list[list[str]] = []
    read = store.spans_of_attempts

    async def counting(attempt_ids):
        asked.append(list(attempt_ids))
        return await read(attempt_ids)

    monkeypatch.setattr(store, "spans_of_attempts", counting)
    grouping = Grouping(make_policy(group_by="prompt"), store)
    first = await grouping.regrouped(await store.ended_attempts())
    await store.append(_spans("d", [3], 90))
    again = await grouping.regrouped(await store.ended_attempts())
    assert again[: len(first)] == first
    assert asked == [["a", "b", "c"], ["d"]]


async def test_other_groupings_read_nothing(store, make_policy, monkeypatch):
    monkeypatch.setattr(store, "spans_of_attempts", None)
    attempts = await store.ended_attempts()
    assert await Grouping(make_policy(), store).regrouped(attempts) == attempts
    regrouped = await Grouping(make_policy(group_by="task"), store).regrouped(attempts)
    assert [attempt.group_id for attempt in regrouped] == [attempt.task_id for attempt in attempts]
