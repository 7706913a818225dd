"""Images on their way from the store to a step: kept ones are trained and found again, others are dropped by name."""

import asyncio
import base64
import json
import time
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.composition import _what_of_images
from lightning_trainer.daemon.loop.building import Builder
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.retention.sweep import delete_batches, delete_rows

LIMITS = StoreConfig.model_validate({"media_size_each": "1KiB"})


def message(body: bytes) -> str:
    encoded = base64.b64encode(body).decode()
    part = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": encoded}
    return json.dumps([{"role": "user", "parts": [part]}])


def shown(span, body: bytes):
    """The same call, with an image in its prompt."""
    if span.scope != semconv.GATEWAY_SCOPE:
        return span
    return replace(span, attributes={**span.attributes, semconv.INPUT_MESSAGES: message(body)})


@pytest.fixture
async def store(tmp_path, attempt_spans, reward_span):
    """Two groups of two: one shows a small image, and an attempt of the other one that is too large."""
    async with SqliteStore(tmp_path / "store.sqlite", LIMITS) as opened:
        for number, attempt in enumerate(("a0", "a1", "b0", "b1")):
            spans = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number, task=attempt[0])
            body = b"x" * 2000 if attempt == "b1" else b"small"
            await opened.append([*(shown(one, body) for one in spans), reward_span(float(attempt[1]), attempt=attempt)])
        yield opened


def builder(policy, store, **model) -> Builder:
    stored = asyncio.Event()
    return Builder(
        policy, store=store, progress=Progress(), rollbacks=RollbackRequests(wake=stored), stored=stored, **model
    )


async def test_kept_images_reach_the_trainer_and_a_batch_keeps_them_as_long_as_it_can_be_repeated(store, make_policy):
    attempts = await store.ended_attempts()
    build = await builder(make_policy(non_text="keep"), store, image_token=99).build(attempts, 1)
    assert build is not None
    assert build.batch is not None
    assert {sample.group_id for sample in build.batch.samples} == {"a"}
    reasons = {row.reason for row in build.ledger}
    assert Reason.MEDIA_MISSING in reasons
    ids = [one.attempt_id for one in attempts]
    await store.assign(build.batch, policy=build.batch.policy, step=1, attempt_ids=ids, ledger=build.ledger)
    await store.write(lambda connection: delete_rows(connection, range(1, 100)))
    again = await store.with_media(await store.batch(build.batch.policy, 1))
    ((uri, body),) = again.media.items()
    assert body == b"small"
    assert {media.uri for sample in again.samples for media in sample.media} == {uri}
    await store.write(lambda connection: connection.execute("UPDATE steps SET state = 'trained'").rowcount)
    await store.write(lambda connection: delete_batches(connection, again.policy, 1))
    assert (await store.holds())["media"] == 0


@pytest.mark.parametrize(("non_text", "token"), [("drop", 99), ("keep", None)], ids=["not wanted", "a text model"])
async def test_without_a_model_that_sees_or_the_wish_calls_with_images_are_dropped(store, make_policy, non_text, token):
    build = await builder(make_policy(non_text=non_text), store, image_token=token).build(
        await store.ended_attempts(), 1
    )
    assert build is not None
    assert build.batch is None
    assert {row.reason for row in build.ledger} == {Reason.NON_TEXT}


def test_a_start_says_where_model_and_setting_disagree(make_policy):
    assert 'non_text = "keep" trains' not in str(_what_of_images(make_policy(), sees=False))
    assert "answered and not trained" in str(_what_of_images(make_policy(), sees=True))
    assert "reads text alone" in str(_what_of_images(make_policy(non_text="keep"), sees=False))
    assert _what_of_images(make_policy(non_text="keep"), sees=True) is None
