"""Langfuse's scores are feedback: one, a list, or events, about what their trace or their metadata names."""

import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import APIRouter, Depends

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.gateway.auth import require_token
from lightning_trainer.ingest.http.langfuse import langfuse_router
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.worklist.settling import look

_SCORES, _INGESTION = "/api/public/scores", "/api/public/ingestion"


@pytest.fixture
async def client(store: SqliteStore, client_of, attempt_spans) -> AsyncIterator[httpx.AsyncClient]:
    await store.append(attempt_spans("a", [1], 10))
    async with client_of(langfuse_router(store, store, FeedbackConfig())) as opened:
        yield opened


async def kept(store: SqliteStore):
    return await store.scan(feedback.select)


async def test_a_source_that_is_no_unicode_is_written_as_one_that_is(client, store):
    raw = b'{"traceId": "%s", "name": "helpful", "value": 1, "metadata": {"user_id": "\\ud800x"}}' % (b"ab" * 16)
    answer = await client.post(_SCORES, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert [one.source for one in await kept(store)] == ["?x"]


async def test_langfuses_scores_are_feedback(client, store) -> None:
    (root, call, *_) = await store.spans_of_attempts(["a"])
    about = {"traceId": root.trace_id, "name": "thumbs"}
    first = await client.post(_SCORES, json={**about, "id": "s1", "value": 1, "dataType": "BOOLEAN", "comment": "ok"})
    assert (first.status_code, first.json()) == (200, {"id": "s1"})
    await client.post(
        _SCORES, json={**about, "value": 0.25, "metadata": {"user_id": "u7"}, "observationId": call.span_id}
    )
    await client.post(_SCORES, json={**about, "value": "Better.", "dataType": "CORRECTION", "environment": "live"})
    await store.write(feedback.match)
    found = [
        (one.source, one.kind, one.value, one.attempt_id, one.response_id, one.edited) for one in await kept(store)
    ]
    assert found == [
        ("langfuse", "system", 1.0, "a", None, False),
        ("u7", "person", 0.25, "a", "response-a", False),
        ("langfuse", "system", None, "a", None, True),
    ]


@pytest.mark.parametrize(
    ("metadata", "attempt_id", "response_id"),
    [
        ({"rollout_id": "r-a"}, "a", None),
        ({"attempt_id": "a", "user_id": "u7"}, "a", None),
        ({"response_id": "response-a", "rollout_id": 7}, "a", "response-a"),
        ({"rollout_id": "\ud800"}, None, None),
        ({}, None, None),
    ],
)
async def test_a_scores_metadata_name_what_it_is_about(client, store, metadata, attempt_id, response_id) -> None:
    """Before: only the trace did, and the one that Langfuse's client knows is never ours."""
    body = json.dumps({"traceId": "ab" * 16, "name": "thumbs", "value": 1, "id": "s1", "metadata": metadata})
    answer = await client.post(_SCORES, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert ("rates no attempt" in answer.json().get("reason", "")) == (attempt_id is None)
    (one,) = await kept(store)
    assert (one.attempt_id, one.response_id) == (attempt_id, response_id)


async def test_the_reason_names_the_rollout_that_has_not_been_seen(client, store) -> None:
    """Before: it said that what the score names belongs to no rollout, or to several attempts."""
    (root, *_) = await store.spans_of_attempts(["a"])
    about = {"traceId": root.trace_id, "name": "thumbs", "value": 1, "metadata": {"rollout_id": "r-later"}}
    answer = await client.post(_SCORES, json=about)
    assert answer.json()["reason"] == (
        "it rates no attempt: no span of rollout 'r-later' has been seen; it counts once its spans come"
    )


async def test_langfuses_client_sends_lists_of_scores(client, store) -> None:
    about = {"name": "thumbs", "metadata": {"rollout_id": "r-a", "user_id": "u7"}}
    scores: list = [{**about, "id": "s1", "value": 1.0}, {**about, "id": "s2", "value": 0.25, "sessionId": "s"}]
    for _ in range(2):  # what it sends again changes nothing
        answer = await client.post(_SCORES, json=scores)
        assert (answer.status_code, answer.json()) == (202, {"message": "Accepted"})
    answer = await client.post(
        _SCORES, json=[{**about, "value": 7}, scores[0], 1, {**about, "value": 1, "metadata": "m"}]
    )
    assert answer.status_code == 207
    told = answer.json()
    assert (told["accepted"], told["rejected"]) == (1, 3)
    first, second, third = (one["message"] for one in told["errors"])
    assert "score 0: score is 7, and the scale goes from 0 to 1" in first
    assert (second[:8], "score 3: give a traceId" in third) == ("score 2:", True)
    assert [(one.source, one.attempt_id, one.value) for one in await kept(store)] == [
        ("u7", "a", v) for v in (1.0, 0.25)
    ]
    assert (await client.post(_SCORES, json=[1] * 1001)).status_code == 422


async def test_older_clients_of_langfuse_send_scores_as_events(client, store) -> None:
    about = {"name": "thumbs", "sessionId": "s", "metadata": {"rollout_id": "r-a", "user_id": "u7"}}
    events = [
        {"id": "e1", "type": "score-create", "body": {**about, "id": "s1", "value": 1}},
        {"id": "e2", "type": "score-create", "body": {**about, "value": 0.25}},
        {"id": "e3", "type": "score-create", "body": {**about, "value": 7}},
        {"id": "e4", "type": "score-create", "body": [1]},
        {"id": "e5", "type": "trace-create", "body": {"id": "t"}},
    ]
    batch = {"batch": [{**event, "timestamp": "2026-01-01T00:00:00Z"} for event in events], "metadata": {}}
    for _ in range(2):  # what it sends again changes nothing
        answer = await client.post(_INGESTION, json=batch)
        assert answer.status_code == 207, answer.text
        told = answer.json()
        assert told["successes"] == [{"id": id_, "status": 201} for id_ in ("e1", "e2", "e5")]
        assert [(one["id"], one["status"]) for one in told["errors"]] == [("e3", 422), ("e4", 422)]
        assert "score is 7, and the scale goes from 0 to 1" in told["errors"][0]["message"]
    assert [(one.source, one.attempt_id, one.value) for one in await kept(store)] == [
        ("u7", "a", v) for v in (1.0, 0.25)
    ]
    assert (await client.post(_INGESTION, json={"batch": [{"type": "score-create"}]})).status_code == 422


async def test_a_score_is_what_was_last_said_under_its_id(client, store) -> None:
    """Before: of one id only the first value was ever stored, and all were answered as if they had been."""
    (root, *_) = await store.spans_of_attempts(["a"])
    body = {"traceId": root.trace_id, "name": "thumbs", "id": "s/1", "metadata": {"user_id": "u7"}}
    trusted = FeedbackConfig(trusted=("u7",))

    async def reward() -> float | None:
        await store.write(feedback.match)
        (outcome,) = (await store.scan(lambda connection: look(connection, trusted, time.time_ns()))).outcomes
        return outcome.value

    for value in (1, 1, 0, 1):
        assert (await client.post(_SCORES, json={**body, "value": value})).json() == {"id": "s/1"}
        assert await reward() == value
    assert [one.value for one in await kept(store)] == [1.0, 0.0, 1.0], "what is sent again is the same"


async def test_a_score_is_deleted_by_its_id(client, store) -> None:
    """Before: 404."""
    (root, *_) = await store.spans_of_attempts(["a"])
    body = {"traceId": root.trace_id, "name": "thumbs", "id": "s/1", "value": 1, "metadata": {"user_id": "u7"}}
    await client.post(_SCORES, json=body)
    assert [(await client.delete(f"{_SCORES}/s/1")).status_code for _ in range(2)] == [204, 204]
    assert [(one.source, one.name, one.taken_back) for one in await kept(store)] == [
        ("u7", "thumbs", False),
        ("u7", "thumbs", True),
    ]
    unknown = await client.delete(f"{_SCORES}/s2")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"] == "there is no score 's2': check the id it was given"
    await client.post(_SCORES, json=body)
    assert (await kept(store))[-1].value == 1.0


async def test_langfuses_corrections_may_be_as_long_as_an_edit(client, store) -> None:
    (root, *_) = await store.spans_of_attempts(["a"])
    body = {"traceId": root.trace_id, "name": "output", "value": "Better. " * 100, "dataType": "CORRECTION"}
    answer = await client.post(_SCORES, json=body)
    assert answer.status_code == 200, answer.text
    assert [one.edited for one in await kept(store)] == [True]
    assert (await client.post(_SCORES, json={**body, "value": ""})).status_code == 422


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"value": "positive", "dataType": "CATEGORICAL", "traceId": "1" * 32}, "value 'positive' is a category"),
        ({"value": 7, "traceId": "1" * 32}, "score is 7, and the scale goes from 0 to 1"),
        ({"value": 1, "sessionId": "s"}, "scores of sessions and of dataset runs are not feedback"),
    ],
)
async def test_scores_that_are_no_feedback_are_refused(client, body, sentence) -> None:
    answer = await client.post(_SCORES, json={"name": "thumbs", **body})
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (422, True), answer.text


async def test_langfuses_clients_send_the_token_as_their_secret_key(store, client_of) -> None:
    router = APIRouter(dependencies=[Depends(require_token("the-token"))])
    router.include_router(langfuse_router(store, store, FeedbackConfig()))
    body = {"traceId": "1" * 32, "name": "thumbs", "value": 1}
    async with client_of(router) as client:
        for password, status in (("the-token", 200), ("another", 401), ("", 401)):
            assert (await client.post(_SCORES, json=body, auth=("pk-any", password))).status_code == status
        broken = await client.post(_SCORES, json=body, headers={"authorization": "Basic !!"})
        assert broken.status_code == 401
