"""Rewards from outside: stored as evaluations, refused with one sentence."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.http.otlp import encode_request, otlp_router
from lightning_trainer.ingest.http.rewards import rewards_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import Span

_URL = "/lightning/rollouts/r/rewards"
RECORDINGS = sorted(path.stem for path in (Path(__file__).parents[2] / "recorded").glob("*.json"))


@pytest.fixture
async def client(store: SqliteStore, client_of) -> AsyncIterator[httpx.AsyncClient]:
    attributes = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a", semconv.ROLLOUT_ROOT: True}
    await store.append([Span("1" * 32, "2" * 16, None, "rollout", 1, 2, attributes)])
    async with client_of(rewards_router(store, store)) as opened:
        yield opened


async def _evaluations(store: SqliteStore) -> list[tuple]:
    reading = read_spans(await store.spans_of_attempts(["a"]))
    assert reading.problems == ()
    return [(e.name, e.value, e.rollout_id, e.attempt_id, e.span_id, e.explanation) for e in reading.evaluations]


async def test_a_reward_becomes_an_evaluation_of_its_rollout(client, store: SqliteStore) -> None:
    answer = await client.post(_URL, json={"value": 1})
    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "new": True})
    assert await _evaluations(store) == [("reward", 1.0, "r", None, None, None)]


async def test_a_reward_may_name_its_attempt_and_say_why(client, store: SqliteStore) -> None:
    body = {"value": -0.5, "name": "style", "attempt_id": "a", "explanation": "too long"}
    assert (await client.post(_URL, json=body)).status_code == 200
    assert await _evaluations(store) == [("style", -0.5, "r", "a", None, "too long")]


@pytest.mark.parametrize("name", RECORDINGS)
async def test_a_call_of_any_instrumentation_is_found_by_its_response(store, client_of, recorded, name):
    spans = recorded(name)
    async with client_of(otlp_router(store)) as opened:
        answer = await opened.post(
            "/v1/traces", content=encode_request(spans), headers={"content-type": "application/x-protobuf"}
        )
        assert answer.status_code == 200
    calls = [call for span in spans if (call := dialect_of(span).model_call(span)) and call.response_id]
    assert calls
    for call in calls:
        assert await store.has_response(call.response_id), call.response_id


async def test_a_reward_with_an_id_counts_once(client, store: SqliteStore) -> None:
    answers = [await client.post(_URL, json={"value": value, "id": "judge-1"}) for value in (0.25, 0.75)]
    assert [answer.json()["new"] for answer in answers] == [True, False]
    assert [evaluation[1] for evaluation in await _evaluations(store)] == [0.25]


@pytest.mark.parametrize(
    ("url", "body", "status", "sentence"),
    [
        ("/lightning/rollouts/z/rewards", b'{"value": 1}', 404, "no span of rollout 'z' has been seen"),
        (_URL, b'{"value": 1, "attempt_id": "z"}', 404, "rollout 'r' has no attempt 'z'"),
        (_URL, b'{"value": NaN}', 422, "value is nan: a reward is a number between -1e+09 and 1e+09"),
        (_URL, b'{"value": 1.7e308}', 422, "value is 1.7e+308: a reward is a number"),
        (_URL, b'{"value": -Infinity}', 422, "value is -inf"),
        (_URL, b'{"value": "good"}', 422, "value: Input should be a valid number"),
        (_URL, b'{"value": true}', 422, "value: Input should be a valid number"),
        (_URL, b"{}", 422, "value: Field required"),
        (_URL, b'{"value": 1, "valeu": 2}', 422, "valeu: Extra inputs"),
        (_URL, b"[]", 422, "body: Input should be a valid dictionary"),
        (_URL, b"{", 400, "the body is not JSON"),
        (_URL, b"[" * 100_000, 400, "the body is not JSON"),
        (_URL, b" " * (2**20 + 1), 413, "more than 1048576 bytes"),
    ],
)
async def test_what_is_no_reward_is_refused(client, store, url, body, status, sentence) -> None:
    answer = await client.post(url, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (status, True), answer.text
    assert await _evaluations(store) == []


async def test_a_body_that_is_not_said_to_be_json_is_refused(client, store) -> None:
    assert (await client.post(_URL, content=b'{"value": 1}', headers={"content-type": "text/plain"})).status_code == 415
    assert await _evaluations(store) == []


async def test_a_store_that_cannot_commit_asks_for_the_reward_again(store, client_of) -> None:
    class Full:
        async def append(self, spans) -> int:
            raise StoreError("the disk is full")

    await store.append([Span("1" * 32, "2" * 16, None, "s", 1, 2, {semconv.ROLLOUT_ID: "r"})])
    answer = await client_of(rewards_router(store, Full())).post(_URL, json={"value": 1})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


_RESPONSE_URL = "/lightning/responses/x/rewards"


@pytest.fixture
async def call(store: SqliteStore) -> None:
    attributes = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a", semconv.RESPONSE_ID: "x"}
    await store.append([Span("1" * 32, "3" * 16, "2" * 16, "chat", 1, 2, attributes, scope=semconv.GATEWAY_SCOPE)])


async def test_a_reward_of_a_response_is_found_with_the_attempt_that_made_the_call(client, call, store) -> None:
    answer = await client.post(_RESPONSE_URL, json={"value": 0.5, "id": "judge-1"})
    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "new": True})
    (evaluation,) = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert (evaluation.response_id, evaluation.value, evaluation.attempt_id, evaluation.agent) == ("x", 0.5, None, None)
    assert (await client.post(_RESPONSE_URL, json={"value": 0.5, "id": "judge-1"})).json()["new"] is False


async def test_a_reward_may_be_of_one_agent(client, store) -> None:
    assert (await client.post(_URL, json={"value": 0.5, "agent": "planner"})).status_code == 200
    (evaluation,) = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert (evaluation.agent, evaluation.rollout_id, evaluation.response_id) == ("planner", "r", None)


async def test_a_reward_of_a_response_that_nobody_gave_is_refused(client, call) -> None:
    unknown = await client.post("/lightning/responses/y/rewards", json={"value": 1})
    assert (unknown.status_code, "no span of response 'y'" in unknown.text) == (404, True)
    both = await client.post(_RESPONSE_URL, json={"value": 1, "agent": "planner"})
    assert (both.status_code, "is one call: leave agent out" in both.text) == (404, True)


async def test_where_calls_of_two_attempts_have_one_response_id_the_reward_names_the_attempt(
    client, call, store
) -> None:
    for number, attempt in enumerate("ab", start=4):
        chat = {
            semconv.ROLLOUT_ID: "r",
            semconv.ATTEMPT_ID: attempt,
            semconv.RESPONSE_ID: "x",
            semconv.OPERATION: "chat",
        }
        await store.append([Span(f"{number}" * 32, f"{number}" * 16, None, "chat", 3, 4, chat, scope="openai")])
    refused = await client.post(_RESPONSE_URL, json={"value": 1})
    assert (refused.status_code, "name one with attempt_id" in refused.text) == (409, True)
    assert (await client.post(_RESPONSE_URL, json={"value": 1, "attempt_id": "c"})).status_code == 404
    assert (await client.post(_RESPONSE_URL, json={"value": 1, "attempt_id": "b"})).status_code == 200
    (evaluation,) = read_spans(await store.spans_of_attempts(["b"])).evaluations
    assert (evaluation.attempt_id, evaluation.response_id, evaluation.span_id) == ("b", "x", None)
    assert read_spans(await store.spans_of_attempts(["a"])).evaluations == ()


@pytest.mark.parametrize("url", [_URL, _RESPONSE_URL])
async def test_whoever_sends_a_reward_too_late_is_told(client, call, store, url) -> None:
    await store.assign(None, policy="p", step=3, attempt_ids=["a"], ledger=(), state=StepState.SKIPPED, metrics={})
    answer = await client.post(url, json={"value": 1})
    assert answer.status_code == 200
    assert answer.json()["too_late"] == "its attempt belongs to step 3: the reward is stored and not trained"
    assert len(read_spans(await store.spans_of_attempts(["a"])).evaluations) == 1
