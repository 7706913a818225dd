"""Two daemons of one PostgreSQL store: each answers with what the other wrote, and no number is given twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest

from lightning_trainer.store import prompts
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.prompts import PromptState, root_of

A = "Answer with a number."


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(PostgresStore(postgres_url)) for _ in range(3)]


async def test_registrations_of_one_new_root_at_once_give_one_version(stores: list[PostgresStore]) -> None:
    for number in range(10):
        text = f"default {number}"
        register = partial(prompts.register, name="clerk", root=root_of(text), text=text, now_ns=1)
        found = await asyncio.gather(*(store.write(register) for store in stores * 4))
        assert {(one.version, one.text) for one in found} == {(number, text)}
    assert len(await stores[0].scan(lambda c: prompts.select(c, "clerk"))) == 10


async def test_versions_that_daemons_add_at_once_never_collide(stores: list[PostgresStore]) -> None:
    await stores[0].write(lambda c: prompts.register(c, "clerk", root_of(A), A, 1))
    adding = [
        stores[number % 3].write(lambda c, n=number: prompts.add(c, "clerk", f"text {n}", 0, "reflect", None, n))
        for number in range(60)
    ]
    made = await asyncio.gather(*adding)
    assert sorted(one.version for one in made) == list(range(1, 61))
    kept = {one.version: one.text for one in await stores[1].scan(lambda c: prompts.select(c, "clerk"))}
    assert kept == {0: A} | {one.version: one.text for one in made}


async def test_scores_that_daemons_write_at_once_are_all_kept(stores: list[PostgresStore]) -> None:
    await stores[0].write(lambda c: prompts.register(c, "clerk", root_of(A), A, 1))
    scores = [{f"stage {number}": {"mean": number / 2, "tasks": number + 1}} for number in range(18)]
    await asyncio.gather(
        *(
            stores[place % 3].write(lambda c, score=score: prompts.put_scores(c, "clerk", 0, score))
            for place, score in enumerate(scores)
        )
    )
    (found,) = await stores[2].scan(lambda c: prompts.select(c, "clerk"))
    assert found.scores == {stage: value for score in scores for stage, value in score.items()}


async def test_what_one_daemon_makes_live_the_others_serve_and_one_is_live_at_most(stores: list[PostgresStore]) -> None:
    await stores[0].write(lambda c: prompts.register(c, "clerk", root_of(A), A, 1))
    for number in range(1, 7):
        await stores[0].write(lambda c, n=number: prompts.add(c, "clerk", f"text {n}", 0, "reflect", None, n))
    await asyncio.gather(
        *(stores[n % 3].write(lambda c, n=n: prompts.use(c, "clerk", n)) for n in range(7) for _ in range(3))
    )
    served = [await store.scan(lambda c: prompts.live(c, "clerk", root_of(A))) for store in stores]
    rows = await stores[0].scan(lambda c: prompts.select(c, "clerk"))
    live = [one for one in rows if one.state is PromptState.LIVE]
    assert served == live * 3
    assert [one.state for one in rows].count(PromptState.RETIRED) == 6
