"""A span that comes in is stored in the form that everything later finds it by."""

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.agents.census import count_agents
from lightning_trainer.ingest.http.otlp import encode_request, otlp_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import AttemptState, RolloutMode, Span

_HEADERS = {"content-type": "application/x-protobuf"}
_IDS = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a"}


@pytest.fixture
def arrived(store, client_of):
    """Send spans to the receiver, then return those of attempt ``a`` in the store."""
    client = client_of(otlp_router(store))

    async def arrived(*spans: Span) -> list[Span]:
        answer = await client.post("/v1/traces", content=encode_request(spans), headers=_HEADERS)
        assert answer.status_code == 200
        return list(await store.spans_of_attempts(["a"]))

    return arrived


def _span(number: int, attributes: dict, *, above: int | None = None, trace="1", resource=None, scope="spring") -> Span:
    ids = (trace * 32, f"{number:016x}", None if above is None else f"{above:016x}")
    return Span(*ids, "s", number, number + 1, attributes, scope=scope, resource=resource or {})


@pytest.mark.parametrize(
    ("mark", "ended"), [("true", True), ("True", True), (True, True), ("false", False), (1, False)]
)
async def test_the_mark_of_a_root_may_be_text(arrived, store, mark, ended: bool) -> None:
    await arrived(_span(1, {**_IDS, semconv.ROLLOUT_ROOT: mark}))
    (attempt,) = await store.attempts()
    assert (attempt.state is AttemptState.SUCCEEDED) is ended


_CALL = {semconv.OPERATION: semconv.CHAT, semconv.OUTPUT_TOKENS: 5}
_PROCESS = {**_IDS, semconv.AGENT_NAME: "solver", semconv.ROLLOUT_MODE: "evaluate"}
"""As ``OTEL_RESOURCE_ATTRIBUTES`` sets it for a process that makes one attempt."""


async def test_the_resource_names_the_attempt_and_the_agent_of_a_process(arrived, store) -> None:
    other = _span(2, _CALL, trace="2", resource={"service.name": "s"})
    spans = await arrived(_span(1, _CALL, resource=_PROCESS), other)
    (call,) = read_spans(spans).calls
    assert (call.span_id, call.rollout_id, call.attempt_id, call.agent) == (f"{1:016x}", "r", "a", "solver")
    (attempt,) = await store.attempts()
    assert (attempt.rollout_id, attempt.mode) == ("r", RolloutMode.EVALUATE)
    (census,) = count_agents([spans])
    assert (census.agent, census.calls, census.sources) == ("solver", 1, {"resource"})


async def test_what_a_span_or_one_above_it_says_goes_before_the_resource(arrived, store) -> None:
    above = _span(1, {semconv.AGENT_NAME: "writer"}, resource=_PROCESS)
    other = {semconv.ROLLOUT_ID: "r2", semconv.ATTEMPT_ID: "a2"}
    spans = await arrived(
        above,
        _span(2, _CALL, above=1, resource=_PROCESS),
        _span(3, other, resource=_PROCESS, trace="2"),
        _span(4, _CALL, above=3, resource=_PROCESS, trace="2"),
    )
    (call,) = read_spans(spans).calls
    assert (call.agent, call.attempt_id) == ("writer", "a")
    (beyond,) = read_spans(await store.spans_of_attempts(["a2"])).calls
    assert (beyond.span_id, beyond.rollout_id, beyond.attempt_id) == (f"{4:016x}", "r2", "a2")
    assert {one.attempt_id: one.mode for one in await store.attempts()} == {
        "a": RolloutMode.EVALUATE,
        "a2": RolloutMode.TRAIN,
    }


async def test_a_process_that_evaluates_does_so_in_the_attempts_that_its_spans_name(arrived, store) -> None:
    await arrived(_span(1, {**_IDS, **_CALL}, resource={semconv.ROLLOUT_MODE: "evaluate"}))
    assert [attempt.mode for attempt in await store.attempts()] == [RolloutMode.EVALUATE]


async def test_spans_of_our_own_client_are_stored_as_they_came(arrived, store) -> None:
    await arrived(_span(1, _CALL, resource=_PROCESS, scope=semconv.CLIENT_SCOPE))
    assert await store.attempts() == []
    (span,) = await store.spans_of_trace("1" * 32)
    assert dict(span.attributes) == _CALL


async def test_the_metadata_of_the_ai_sdk_name_the_attempt_and_the_agent(arrived) -> None:
    told = {f"ai.telemetry.metadata.{name}": value for name, value in {**_IDS, semconv.AGENT_NAME: "solver"}.items()}
    answered = {"ai.operationId": "ai.generateText.doGenerate", "ai.response.finishReason": "stop"}
    spans = await arrived(_span(1, {**told, **answered, "ai.telemetry.functionId": "solve"}))
    (call,) = read_spans(spans).calls
    assert (call.rollout_id, call.attempt_id, call.agent) == ("r", "a", "solver")
