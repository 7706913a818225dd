"""A reward that comes too late is stored and said, one that comes in time is nobody's news."""

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.daemon.watching.notifying_store import NotifyingStore, late_rewards
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import Span


def _root(attempt: str, rollout: str, start: int = 1) -> Span:
    attributes = {semconv.ROLLOUT_ID: rollout, semconv.ATTEMPT_ID: attempt, semconv.ROLLOUT_ROOT: True}
    return Span(f"{start:032x}", f"{start:016x}", None, "rollout", start, start + 1, attributes)


@pytest.fixture
async def store(tmp_path):
    """Rollout ``r``: attempt ``a`` in step 1 (with response ``x``), then attempt ``b``, which no step has."""
    call = {semconv.ATTEMPT_ID: "a", semconv.ROLLOUT_ID: "r", semconv.RESPONSE_ID: "x"}
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        chat = Span("c" * 32, "c" * 16, None, "chat", 1, 2, call, scope=semconv.GATEWAY_SCOPE)
        await store.append([_root("a", "r", 1), chat, _root("b", "r", 5), _root("c", "s", 9)])
        await store.assign(
            None, policy="p", step=1, attempt_ids=["a", "c"], ledger=(), state=StepState.SKIPPED, metrics={}
        )
        yield store


async def test_a_reward_of_a_consumed_attempt_or_of_a_response_of_it_is_late(store, reward_span):
    for about in ({"attempt": "a"}, {"response": "x"}, {"attempt": "a", "rollout": "r"}):
        count, sentence = await late_rewards(store, [reward_span(1.0, **about)])
        assert count == 1
        assert sentence is not None
        assert "a (step 1); they are stored and not trained" in sentence


async def test_a_rollouts_reward_is_that_of_its_last_attempt_which_is_in_time(store, reward_span):
    assert await late_rewards(store, [reward_span(1.0, rollout="r")]) == (0, None)
    assert (await late_rewards(store, [reward_span(1.0, rollout="s")]))[0] == 1


async def test_what_is_in_time_or_no_reward_is_not_reported(store, reward_span):
    assert await late_rewards(
        store, [reward_span(1.0, attempt="b"), reward_span(1.0, response="y"), _root("z", "q", 30)]
    ) == (
        0,
        None,
    )


async def test_the_sink_stores_it_reports_it_once_and_counts_it(store, reward_span):
    progress = Progress()
    sink = NotifyingStore(store)
    sink.watch("p", progress)
    late = reward_span(1.0, attempt="a")
    assert [await sink.append([late]), await sink.append([late]), await sink.append([late, _root("d", "q", 40)])] == [
        1,
        0,
        1,
    ]
    assert progress.late_rewards == 1
    assert len(progress.problems) == 1
    assert len(read_spans(await store.spans_of_attempts(["a"])).evaluations) == 1
