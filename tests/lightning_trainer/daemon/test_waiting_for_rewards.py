"""A reward that arrives after the rollout has ended still counts, as long as its attempt is in no step."""

import asyncio
import time
from typing import Any, cast

import pytest

from lightning_trainer.daemon.progress import Progress
from lightning_trainer.daemon.service import NotifyingSink
from lightning_trainer.daemon.training_loop import TrainingLoop
from lightning_trainer.store import SqliteStore


@pytest.fixture
async def daemon(tmp_path, make_policy, attempt_spans, reward_span):
    """Make a loop over two ended attempts of one group, of which only the first has a reward."""
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        progress = Progress()
        sink = NotifyingSink(store, progress)

        async def daemon(**settings):
            for number, attempt in enumerate("ab"):
                await sink.append(attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number))
            await sink.append([reward_span(1.0, attempt="a")])
            nothing = cast(Any, None)
            loop = TrainingLoop(
                make_policy(**settings),
                store=store,
                trainer=nothing,
                publisher=nothing,
                checkpoints=nothing,
                progress=progress,
                stored=sink.stored,
            )
            return loop, sink, tuple(await store.ended_attempts())

        yield daemon


async def test_a_step_does_not_wait_unless_it_is_told_to(daemon):
    loop, _, attempts = await daemon()
    build = await loop._scored_build(attempts, 1)
    assert (build.batch, build.unscored) == (None, {"b"})


@pytest.mark.parametrize("about", [{"rollout": "r-b"}, {"response": "response-b"}])
async def test_a_late_reward_reopens_what_it_changes(daemon, about, reward_span):
    loop, sink, attempts = await daemon(reward_wait_s=600, credit={"scheme": "discounted"})
    building = asyncio.create_task(loop._scored_build(attempts, 1))
    while not loop._progress.detail.endswith("waiting for rewards of 1 attempts"):
        await asyncio.sleep(0)
    if "response" in about:  # a call's reward: then the others' calls need theirs too
        await sink.append([reward_span(0.5, response="response-a"), reward_span(0.0, rollout="r-b")])
    await sink.append([reward_span(0.0, **about)])
    build = await building
    assert build.unscored == frozenset()
    assert build.batch is not None
    expected = [1.5, 0.0] if "response" in about else [1.0, 0.0]
    assert [segment.credit for sample in build.batch.samples for segment in sample.segments] == expected
