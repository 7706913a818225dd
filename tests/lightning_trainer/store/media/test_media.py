"""Images are stored once, in the transaction of the span that brings them, and go with the last that refers to them."""

import base64
import hashlib
import json
from dataclasses import replace
from functools import partial

import orjson
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import input_messages

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.ingest.media import media_of
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.store.retention.sweep import delete_rows
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.upkeep.backup import back_up
from lightning_trainer.store.upkeep.check import check
from lightning_trainer.store.upkeep.files import STORE
from lightning_trainer.store.upkeep.restore import restore
from lightning_trainer.store.worklist.forgetting import forget_rollout
from lightning_trainer.types import Media, Span

CAT = b"\x89PNG\r\n\x1a\n a cat"
DOG = b"\x89PNG\r\n\x1a\n a dog"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def url(body: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(body).decode()}"


def shown(number: int, *bodies: bytes, attempt: str | None = None, **others) -> Span:
    """A call whose prompt shows these images."""
    parts = [{"type": "image_url", "image_url": {"url": url(body)}} for body in bodies]
    said = orjson.dumps(input_messages([{"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]}]))
    named = {semconv.ATTEMPT_ID: attempt, semconv.ROLLOUT_ID: f"r-{attempt}"} if attempt else {}
    attributes = {semconv.INPUT_MESSAGES: said.decode(), **named, **others}
    return Span(f"{number:032x}", f"{number:016x}", None, "chat", number, number + 1, attributes)


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / STORE) as opened:
        yield opened


async def held(store) -> tuple[int, int]:
    said = await store.holds()
    return said["media"], said["media_bytes"]


async def test_a_span_keeps_a_reference_and_the_bytes_are_stored_once(store):
    await store.append([shown(1, CAT, DOG), shown(2, DOG)])
    await store.append([shown(3, CAT)])
    await store.append([shown(1, CAT, DOG)])  # delivered again
    assert await held(store) == (2, len(CAT) + len(DOG))
    (span,) = await store.spans_of_trace(f"{1:032x}")
    assert media_of(span) == tuple(Media("image", f"sha256:{digest(body)}", "image/png") for body in (CAT, DOG))
    assert base64.b64encode(CAT).decode() not in span.attributes[semconv.INPUT_MESSAGES]
    kept = await store.media([digest(CAT), digest(b"another")])
    assert {one: (found.mime_type, found.body) for one, found in kept.items()} == {digest(CAT): ("image/png", CAT)}
    assert await store.media_kept([digest(DOG), digest(b"another")]) == {digest(DOG)}


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(CAT).decode()},
        },
        {"type": "input_image", "image_url": url(CAT)},
        {"type": "image", "data": base64.b64encode(CAT).decode(), "mimeType": "image/png"},
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(CAT).decode()}},
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": base64.b64encode(CAT).decode()},
    ],
    ids=["anthropic", "responses", "mcp", "gemini", "genai"],
)
async def test_every_apis_way_to_embed_an_image_is_known(part):
    said = orjson.dumps([{"role": "user", "parts": [part]}]).decode()
    found = exchange([Span("1" * 32, "2" * 16, None, "chat", 0, 1, {"gen_ai.input.messages": said})])
    assert [one.body for media in found.media.values() for one in media.values()] == [CAT]
    assert f"sha256:{digest(CAT)}" in str(found.spans[0].attributes["gen_ai.input.messages"])


async def test_another_tracers_plain_address_is_exchanged_too():
    name = "llm.input_messages.0.message.contents.0.message_content.image.image.url"
    found = exchange([Span("1" * 32, "2" * 16, None, "chat", 0, 1, {name: url(CAT)})])
    assert found.spans[0].attributes == {name: f"sha256:{digest(CAT)}"}


@pytest.mark.parametrize(
    "text",
    [
        f"look at {url(CAT)}",
        url(CAT) + "?",
        "data:text/plain;base64,c2VjcmV0IHdvcmRzIG9mIGEgdGV4dA==",
        orjson.dumps([{"type": "text", "content": f"write {url(CAT)} into the page"}]).decode(),
        orjson.dumps(
            [{"type": "blob", "mime_type": "image/png", "content": "no base64 at all, but a sentence"}]
        ).decode(),
        '[{"type": "blob", "content": ' + "[" * 50_000,
    ],
)
def test_texts_and_what_cannot_be_read_stay_as_they_came(text):
    span = Span("1" * 32, "2" * 16, None, "chat", 0, 1, {"gen_ai.input.messages": text})
    found = exchange([span])
    assert (found.spans, found.media) == ([span], {})
    assert found.spans[0] is span


def test_what_else_a_message_says_stays_to_the_last_digit_and_one_attribute_says_nothing_of_another():
    arguments = {"id": 2**70, "half": "\ud83d", "share": 0.1}
    parts = [{"type": "tool_call", "arguments": arguments}, {"type": "image_url", "image_url": {"url": url(CAT)}}]
    attributes = {
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": parts}]),
        "gen_ai.tool.call.result": '{"data": [' + url(DOG),
    }
    exchanged = exchange([Span("1" * 32, "2" * 16, None, "chat", 0, 1, attributes)])
    ((_, found),) = exchanged.media.items()
    assert [one.body for one in found.values()] == [CAT]
    said = str(exchanged.spans[0].attributes["gen_ai.input.messages"])
    assert said.isascii()
    assert json.loads(said)[0]["parts"][0]["arguments"] == arguments
    assert exchanged.spans[0].attributes["gen_ai.tool.call.result"] == attributes["gen_ai.tool.call.result"]


async def test_an_address_is_left_as_it_is_and_not_fetched(store):
    said = orjson.dumps([{"role": "user", "parts": [{"type": "uri", "modality": "image", "uri": "https://h/cat.png"}]}])
    await store.append([Span("1" * 32, "2" * 16, None, "chat", 0, 1, {semconv.INPUT_MESSAGES: said.decode()})])
    assert await held(store) == (0, 0)


async def test_what_is_too_large_is_a_reference_alone(tmp_path):
    limits = StoreConfig.model_validate({"media_size_each": "1KiB"})
    async with SqliteStore(tmp_path / STORE, limits) as store:
        await store.append([shown(1, CAT, b"x" * 1025)])
        assert await held(store) == (1, len(CAT))
        assert (await store.holds())["deleted"]["media"] == 1
        assert len(media_of((await store.spans_of_trace(f"{1:032x}"))[0])) == 2


async def test_the_oldest_make_room_but_not_for_what_a_step_may_want(tmp_path):
    limits = StoreConfig.model_validate({"media_size": "1MiB", "media_size_each": "300KiB"})
    bodies = [bytes([number]) * 200_000 for number in range(8)]
    async with SqliteStore(tmp_path / STORE, limits) as store:
        store.retention.wanted_by = tuple
        for number, body in enumerate(bodies, start=1):
            # The first is of an attempt that runs; nobody can want the others.
            await store.append([shown(number, body, attempt="running" if number == 1 else None)])
        number, size = await held(store)
        assert size <= 2**20
        kept = await store.media_kept([digest(body) for body in bodies])
        assert {digest(bodies[0]), digest(bodies[-1])} <= kept
        assert digest(bodies[1]) not in kept
        assert (await store.holds())["deleted"]["media"] == len(bodies) - number


@pytest.mark.parametrize(
    ("trace", "near"), [(1, {}), (2, {semconv.ROLLOUT_ID: "r-a"}), (2, {semconv.RESPONSE_ID: "x"})]
)
async def test_what_a_record_without_an_attempt_shows_stays_with_the_attempt_that_it_is_near(make_store, trace, near):
    """Before: it made room for others, although the attempt waited for its step."""
    bodies = [bytes([number]) * 200_000 for number in range(8)]
    async with make_store(StoreConfig.model_validate({"media_size": "1MiB"})) as store:
        await store.enroll("p")
        store.retention.wanted_by = lambda: ["p"]
        await store.append([shown(1, attempt="a", **{semconv.ROLLOUT_ROOT: True, semconv.RESPONSE_ID: "x"})])
        await store.append([replace(shown(2, bodies[0], **near), trace_id=f"{trace:032x}")])
        for number, body in enumerate(bodies[1:], start=3):
            await store.append([shown(number, body)])
        kept = await store.media_kept([digest(body) for body in bodies])
        assert digest(bodies[0]) in kept
        assert digest(bodies[1]) not in kept


async def test_the_last_span_takes_its_image_along(store):
    await store.append([shown(1, CAT, DOG), shown(2, DOG)])
    await store.write(lambda connection: delete_rows(connection, [1]))
    assert await store.media_kept([digest(CAT), digest(DOG)]) == {digest(DOG)}
    await store.write(lambda connection: delete_rows(connection, [2]))
    assert await held(store) == (0, 0)


async def test_what_a_rollout_showed_is_forgotten_with_it(store):
    root = {semconv.ROLLOUT_ROOT: True}
    await store.append([shown(1, CAT, attempt="a", **root), shown(2, DOG, attempt="b", **root)])
    await store.write(lambda connection: forget_rollout(connection, "r-a", now_ns=1))
    assert await store.media_kept([digest(CAT), digest(DOG)]) == {digest(DOG)}


async def test_a_backup_has_the_images_and_so_has_the_journal(tmp_path):
    journal = tmp_path / "journal"
    config = StoreConfig(journal=journal)
    async with SqliteStore(tmp_path / "state" / STORE, config) as store:
        await store.append([shown(1, CAT)])
        back_up(tmp_path / "state", tmp_path / "monday", {}, journal=journal)
        await store.append([shown(2, DOG)])
    restore(tmp_path / "monday", tmp_path / "state", journal=journal)
    async with SqliteStore(tmp_path / "state" / STORE) as store:
        assert await store.media_kept([digest(CAT), digest(DOG)]) == {digest(CAT), digest(DOG)}


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def test_the_images_of_a_journal_come_back_where_those_of_the_backup_fill_media_size(
    tmp_path, database, request
) -> None:
    """Before: the newest were left out, and their spans came back without them."""
    limits = StoreConfig.model_validate({"media_size": "1MiB", "journal": tmp_path / "journal"})
    bodies = [bytes([number]) * 200_000 for number in range(8)]
    state, monday = tmp_path / "state", tmp_path / "monday"
    if database == "sqlite":
        open_store = partial(SqliteStore, state / STORE)
        saved, gone_back = partial(back_up, state), partial(restore, monday, state)
    else:
        from lightning_trainer.store.postgres.store import PostgresStore
        from lightning_trainer.store.postgres.upkeep import backup

        at = request.getfixturevalue("postgres_url")
        open_store = partial(PostgresStore, at)
        saved, gone_back = partial(backup.back_up, at), partial(backup.restore, at, monday, state)
    async with open_store(limits) as store:
        store.retention.wanted_by = tuple
        for number, body in enumerate(bodies, start=1):
            await store.append([shown(number, body)])
            if number == 4:
                saved(monday, {}, journal=limits.journal)
        kept = await store.media_kept([digest(body) for body in bodies])
        assert digest(bodies[-1]) in kept
    gone_back(journal=limits.journal, limits=limits)
    async with open_store(limits) as store:
        assert await store.media_kept(kept) == kept
        store.retention.wanted_by = tuple
        await store.append([shown(9)])  # whatever is written first makes room
        await store.append([shown(10, CAT)])
        assert (await held(store))[1] <= 2**20
        assert await store.media_kept([digest(CAT)])


async def test_the_check_reads_every_image(tmp_path):
    async with SqliteStore(tmp_path / STORE) as store:
        await store.append([shown(1, CAT)])
        await store.write(lambda connection: connection.execute("UPDATE media SET body = ?", (DOG,)).rowcount)
    with read_only(tmp_path / STORE) as connection:
        (found,) = (one for one in check(connection) if one.what == "media")
    assert (found.looked_at, found.number) == (1, 1)
    assert digest(CAT)[:12] in found.damaged[0]


async def test_postgres_keeps_them_alike(postgres_url):
    from lightning_trainer.store.postgres.store import PostgresStore

    async with PostgresStore(postgres_url) as store:
        await store.append([shown(1, CAT, DOG), shown(2, DOG)])
        assert (await store.media([digest(CAT)]))[digest(CAT)].body == CAT
        await store.write(lambda connection: delete_rows(connection, [1]))
        assert await store.media_kept([digest(CAT), digest(DOG)]) == {digest(DOG)}
