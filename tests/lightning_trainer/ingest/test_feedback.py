"""Feedback from outside: durable before it is acknowledged, once, bounded; and no reward before it has been settled."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from lightning_instrumentation import semconv
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.ingest.http.feedback import feedback_router
from lightning_trainer.ingest.http.otlp import otlp_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.feedback.entries import Subject, entries_of, feedback_span
from lightning_trainer.samples.feedback.review import State
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.retention.sweep import expire_attempt
from lightning_trainer.store.tables import feedback, scores
from lightning_trainer.store.worklist.settling import look
from lightning_trainer.types import TrainingBatch

_URL = "/lightning/feedback"


@pytest.fixture
async def client(store: SqliteStore, client_of, attempt_spans) -> AsyncIterator[httpx.AsyncClient]:
    await store.append(attempt_spans("a", [1], 10))
    config = FeedbackConfig(trusted=("crm",), source_per_hour=3)
    async with client_of(feedback_router(store, store, config)) as opened:
        yield opened


async def kept(store: SqliteStore):
    return await store.scan(feedback.select)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ({"thumb": "up"}, 1.0),
        ({"thumb": "down", "response_id": "response-a"}, 0.0),
        ({"score": 4, "scale": [0, 5], "response_id": "response-a"}, 0.8),
        ({"edit": "Better."}, None),
    ],
)
async def test_feedback_is_kept_with_its_attempt_and_is_no_reward(client, store, said, value) -> None:
    body = {"source": "user-1", "rollout_id": "r-a", **said}
    answer = await client.post(_URL, json=body)
    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "new": True, "counts_in_s": 600.0})
    (one,) = await kept(store)
    assert (one.source, one.kind, one.attempt_id, one.value, one.edited) == (
        *("user-1", "person", "a", value),
        "edit" in said,
    )
    assert read_spans(await store.spans_of_attempts(["a"])).evaluations == ()


async def test_a_rating_of_a_call_outside_of_rollouts_is_said_to_count_for_none(client, store, attempt_spans) -> None:
    call = attempt_spans("z", [1], 20)[1]
    outside = {name: value for name, value in call.attributes.items() if name != semconv.ATTEMPT_ID}
    del outside[semconv.ROLLOUT_ID]
    await store.append([replace(call, attributes=outside)])
    body = {"source": "user-1", "response_id": "response-z"}
    told = (await client.post(_URL, json={**body, "thumb": "up"})).json()
    assert (told["accepted"], told["counts_in_s"]) == (True, None)
    assert "what it names belongs to no rollout" in told["reason"]
    told = (await client.post(_URL, json={**body, "edit": "Better."})).json()
    assert told == {"accepted": True, "new": True, "counts_in_s": 600.0}, "an edit is shown by build"


async def test_a_rating_that_comes_too_late_is_said_to_train_nothing(client, store, attempt_spans) -> None:
    """Before: it counted in 600 s."""
    await store.append(attempt_spans("b", [1], 20))
    await store.enroll("math")
    await store.assign(TrainingBatch("math", 1, ()), policy="math", step=1, attempt_ids=["a"], ledger=[])
    await store.write(lambda connection: expire_attempt(connection, "b", 1))
    for attempt, reason in (
        ("a", "its attempt belongs to step 1: it is stored and not trained"),
        ("b", "the spans of its attempt were deleted: it trains nothing"),
    ):
        answer = await client.post(_URL, json={"source": f"user-{attempt}", "attempt_id": attempt, "thumb": "up"})
        assert (answer.json()["counts_in_s"], answer.json()["reason"]) == (None, reason)


async def test_the_same_id_is_the_same_feedback(client, store) -> None:
    body = {"source": "u", "rollout_id": "r-a", "thumb": "up", "id": "click-1"}
    answers = [(await client.post(_URL, json=body)).json()["new"] for _ in range(2)]
    assert (answers, len(await kept(store))) == ([True, False], 1)
    other = {**body, "source": "someone else"}
    assert (await client.post(_URL, json=other)).json()["new"], "ids are a source's own"


async def test_a_trace_leads_to_its_attempt(client, store) -> None:
    (span, *_) = await store.spans_of_attempts(["a"])
    body = {"source": "crm", "kind": "system", "trace_id": span.trace_id, "score": 0.5}
    assert (await client.post(_URL, json=body)).json()["counts_in_s"] == 0
    await store.write(feedback.match)
    (one,) = await kept(store)
    assert (one.attempt_id, one.kind) == ("a", "system")


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"rollout_id": "z", "thumb": "up"}, 404, "no span of rollout 'z' has been seen"),
        ({"rollout_id": "t", "thumb": "up"}, 404, "'t' is a task and not a rollout: a rollout has an id of its own"),
        ({"response_id": "z", "thumb": "up"}, 404, "no span of response 'z' has been seen"),
        ({"trace_id": "f" * 32, "thumb": "up"}, 404, f"no span of trace '{'f' * 32}' has been seen"),
        ({"rollout_id": "r-a", "attempt_id": "b", "thumb": "up"}, 404, "there is no attempt 'b'"),
        ({"thumb": "up"}, 422, "say what it is about: response_id, trace_id or rollout_id"),
        ({"rollout_id": "r-a"}, 422, "it says nothing: give a thumb (up, down, none), a score or an edit"),
        ({"rollout_id": "r-a", "thumb": "up", "score": 1}, 422, "it has a thumb and a score under one name"),
        ({"rollout_id": "r-a", "score": 7}, 422, "score is 7, and the scale goes from 0 to 1; give another scale"),
        ({"rollout_id": "r-a", "score": 7, "scale": [9, 1]}, 422, "scale is [9.0, 1.0]: write the lowest and the"),
        ({"rollout_id": "r-a", "edit": "x" * 65_537}, 422, "at most 65536 characters"),
        ({"rollout_id": "r-a", "thumb": "up", "source": "s" * 257}, 422, "at most 256 characters"),
        ({"rollout_id": "r-a", "thump": "up"}, 422, "thump: Extra inputs"),
    ],
)
async def test_what_cannot_be_used_is_refused_with_one_sentence(client, store, body, status, sentence) -> None:
    answer = await client.post(_URL, json={"source": "u", **body})
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (status, True), answer.text
    assert await kept(store) == []


async def test_a_source_beyond_its_cap_is_told_so_and_a_trusted_one_has_none(client) -> None:
    body = {"source": "busy", "rollout_id": "r-a", "thumb": "up"}
    answers = [await client.post(_URL, json=body) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert "source_per_hour = 3; send it later" in answers[-1].json()["error"]["message"]
    for _ in range(5):
        assert (await client.post(_URL, json={**body, "source": "crm"})).status_code == 200


async def test_a_source_beyond_its_cap_may_take_back_and_send_again_what_is_stored(client) -> None:
    """Before: 429, so that a rating could not be withdrawn, and a retry looked like a loss."""
    body = {"source": "busy", "rollout_id": "r-a"}
    for number in range(3):
        await client.post(_URL, json={**body, "thumb": "up", "id": f"click-{number}"})
    again = await client.post(_URL, json={**body, "thumb": "up", "id": "click-2"})
    assert (again.status_code, again.json()["new"]) == (200, False)
    back = await client.post(_URL, json={**body, "thumb": "none"})
    assert (back.status_code, back.json()["counts_in_s"]) == (200, 0)
    edit = await client.post(_URL, json={**body, "thumb": "none", "edit": "Better."})
    assert edit.status_code == 429
    other = {**body, "source": "other"}
    for thumb in ("none", "none", "none", "up"):
        answer = await client.post(_URL, json={**other, "thumb": thumb})
        assert answer.status_code == 200, "taking back takes no room"


@pytest.mark.parametrize(
    ("source", "number", "seconds_before", "status"),
    [
        ("crm", 60, 0, 200),  # trusted: it has no cap, and takes no room of others
        ("flood", 60, 0, 200),  # what is over its own cap takes none either
        ("user-*", 60, 0, 429),
        ("user-*", 49, 0, 200),
        ("user-*", 60, 1, 200),  # that was the hour before
    ],
)
async def test_over_http_is_refused_what_would_not_count(
    store, client_of, attempt_spans, source, number, seconds_before, status
):
    config = FeedbackConfig.model_validate(
        {"trusted": ["crm"], "source_per_hour": 20, "all_per_hour": 50, "quarantine": "0s"}
    )
    named = [source.replace("*", str(one)) for one in range(number)]
    said = [feedback_span(Subject(rollout_id="r-a"), source=one, kind="person", name="n", value=1.0) for one in named]
    await store.append([*attempt_spans("a", [1], 10), *said])  # as `lt.feedback` sends it: nobody is answered 429
    hour_ns = 3600 * 10**9
    began_ns = time.time_ns() // hour_ns * hour_ns - seconds_before * 10**9
    await store.write(lambda c: c.execute("UPDATE feedback SET received_ns = ? + seq", (began_ns,)))
    async with client_of(feedback_router(store, store, config)) as client:
        answer = await client.post(_URL, json={"source": "honest", "rollout_id": "r-a", "thumb": "up"})
    assert answer.status_code == status, answer.text
    if status == 429:
        assert "60 pieces of feedback came in this hour of all sources together: all_per_hour = 50" in answer.text
        await store.append(
            [feedback_span(Subject(rollout_id="r-a"), source="honest", kind="person", name="n", value=1.0)]
        )
    seen = await store.scan(lambda c: look(c, config, time.time_ns()))
    assert (seen.by_source["honest"][State.CAPPED] == 1) is (status == 429), "as the review decides"


async def test_a_source_on_the_span_makes_its_evaluation_feedback_and_no_reward(store, attempt_spans) -> None:
    """As of a tracer whose user sets the attribute on the span; in the event it stands first."""
    said = feedback_span(Subject(rollout_id="r-a"), source="u7", kind="person", name="reward", value=0.0)
    (event,) = said.events
    told = {key: value for key, value in event.attributes.items() if key != semconv.FEEDBACK_SOURCE}
    said = replace(said, events=(replace(event, attributes=told),))
    await store.append([*attempt_spans("a", [1], 10), said])
    assert [(one.source, one.value) for one in await kept(store)] == [("u7", 0.0)]
    assert read_spans(await store.spans_of_attempts(["a"])).evaluations == ()
    assert await store.scan(lambda connection: scores.select(connection, ["reward"])) == []


def logs(span, *, source: str | None) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    record = records.add(
        event_name=semconv.EVALUATION_EVENT,
        time_unix_nano=77,
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
    )
    told = {semconv.EVALUATION_NAME: "helpful", semconv.EVALUATION_SCORE: 0.5}
    if source is not None:
        told[semconv.FEEDBACK_SOURCE] = source
    for name, value in told.items():
        held = AnyValue(double_value=value) if isinstance(value, float) else AnyValue(string_value=value)
        record.attributes.append(KeyValue(key=name, value=held))
    return request


async def test_an_evaluation_event_is_a_reward_of_the_call_that_it_names_and_comes_once(
    store, client_of, attempt_spans
):
    spans = attempt_spans("a", [1], 10)
    await store.append(spans)
    body = logs(spans[1], source=None).SerializeToString()
    async with client_of(otlp_router(store)) as client:
        for _ in range(2):
            answer = await client.post("/v1/logs", content=body, headers={"content-type": "application/x-protobuf"})
            assert answer.status_code == 200
    (one,) = read_spans(await store.spans_of_attempts(["a"])).evaluations
    assert (one.name, one.value, one.span_id, one.attempt_id) == ("helpful", 0.5, spans[1].span_id, "a")


async def test_an_evaluation_event_that_names_its_source_is_feedback_and_others_are_left_alone(
    store, client_of, attempt_spans
):
    spans = attempt_spans("a", [1], 10)
    await store.append(spans)
    record = {
        "eventName": semconv.EVALUATION_EVENT,
        "timeUnixNano": "77",
        "traceId": spans[1].trace_id,
        "spanId": spans[1].span_id,
        "attributes": [
            {"key": semconv.EVALUATION_NAME, "value": {"stringValue": "helpful"}},
            {"key": semconv.EVALUATION_SCORE, "value": {"doubleValue": 1.0}},
            {"key": semconv.FEEDBACK_SOURCE, "value": {"stringValue": "u1"}},
        ],
    }
    other = {"eventName": "user.clicked", "attributes": []}
    document = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, other]}]}]}
    async with client_of(otlp_router(store)) as client:
        answer = await client.post(
            "/v1/logs", content=json.dumps(document), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200
        broken = json.dumps(document).replace('"logRecords": [', '"logRecords": [7, ')
        refused = await client.post("/v1/logs", content=broken, headers={"content-type": "application/json"})
        assert refused.status_code == 400
    await store.write(feedback.match)
    ((source, attempt_id),) = [(one.source, one.attempt_id) for one in await kept(store)]
    assert (source, attempt_id) == ("u1", "a")
    assert read_spans(await store.spans_of_attempts(["a"])).evaluations == ()


def test_what_anybody_sends_as_feedback_is_read_within_bounds():
    long = feedback_span(Subject(rollout_id="r"), source="s" * 300, kind="person", name="n", value=1.0)
    assert entries_of(long) == []
    off = feedback_span(Subject(rollout_id="r"), source="s", kind="person", name="n", value=7.0)
    assert [one.value for one in entries_of(off)] == [None]
