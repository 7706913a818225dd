"""Names from the program's own OpenTelemetry spans and baggage, where nothing nearer to the call says otherwise."""

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import Any

import aiohttp
import httpx
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation import semconv
from lightning_instrumentation.routing import hosts
from lightning_instrumentation.scope import Agent, Identity, current_agent
from opentelemetry import baggage, context, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.datastructures import Headers

from lightning_trainer.gateway.caller import read_caller


@pytest.fixture
def exported():
    return InMemorySpanExporter()


@pytest.fixture
def span(recording, exported):
    """``with span(name, **attributes)``: a span of the user's own."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("framework")
    return lambda name, **attributes: tracer.start_as_current_span(name, attributes=attributes)


def named(name: str) -> dict[str, str]:
    return {semconv.AGENT_NAME: name}


def name_here() -> tuple[str, str] | None:
    agent = current_agent()
    return (agent.name, agent.source) if agent else None


def test_the_nearest_span_that_names_an_agent_counts(span):
    with span("invoke_agent planner", **named("planner")):
        assert name_here() == ("planner", "span")
        with span("call_llm"), span("POST"):
            assert name_here() == ("planner", "span")
        with span("invoke_agent writer", **named("writer")), span("call_llm"):
            assert name_here() == ("writer", "span")
        assert name_here() == ("planner", "span")
    assert name_here() is None


def test_a_name_that_is_set_after_the_start_counts(span):
    with span("invoke_agent") as outer:
        outer.set_attribute(semconv.AGENT_NAME, "planner")
        with span("call_llm"):
            assert name_here() == ("planner", "span")


def test_a_decorated_agent_inside_of_a_span_is_nearer_and_a_span_inside_of_that_is_nearer_still(span):
    @lt.agent("tool")
    def tool():
        inside = [name_here()]
        with span("chat", **named("planner")):  # a framework that names the agent on every span
            inside.append(name_here())
        with span("invoke_agent writer", **named("writer")):
            inside.append(name_here())
        return inside

    with span("invoke_agent planner", **named("planner")), span("execute_tool", **named("planner")):
        assert tool() == [("tool", "decorator"), ("tool", "decorator"), ("writer", "span")]
        with lt.agent("block"):
            assert name_here() == ("block", "with")


def test_a_span_is_nearer_than_the_name_for_what_nothing_names(span, recording, tmp_path):
    lt.shutdown(0.0)
    lt.init(recording.receiver.url, spool_dir=tmp_path / "named", agent="program")
    with span("invoke_agent planner", **named("planner")):
        assert name_here() == ("planner", "span")
    assert name_here() == ("program", "init")


def test_the_call_says_who_made_it_and_in_which_span(span, recording, exported):
    client = openai.OpenAI(base_url=recording.model.base_url, api_key="k", max_retries=0)
    with lt.rollout("t", rollout_id="r"), span("invoke_agent planner", **named("planner")), span("chat") as chat:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    call = recording.span("chat m")
    own = chat.get_span_context()
    assert call.attributes[semconv.AGENT_NAME] == "planner"
    assert call.attributes[semconv.AGENT_SOURCE] == "span"
    assert call.attributes[semconv.ROLLOUT_ID] == "r"
    assert call.attributes[semconv.OUTER_SPAN] == f"{own.trace_id:032x}-{own.span_id:016x}"
    theirs = exported.get_finished_spans()
    assert [one.name for one in theirs] == ["chat", "invoke_agent planner"]
    assert [dict(one.attributes or {}) for one in theirs] == [{}, named("planner")]


def test_baggage_names_what_no_span_names_inside_of_a_rollout_too(recording):
    token = context.attach(baggage.set_baggage(semconv.AGENT_NAME, "caller"))
    try:
        with lt.rollout("t"):
            assert name_here() == ("caller", "baggage")
            assert lt.agent("inside")(name_here)() == ("inside", "decorator")
    finally:
        context.detach(token)


def test_a_thread_is_told(span):
    heard = []
    with span("invoke_agent planner", **named("planner")):
        thread = threading.Thread(target=lambda: heard.append(name_here()))
        thread.start()
        thread.join()
    assert heard == [("planner", "span")]


@pytest.mark.long
def test_spans_above_are_not_kept_in_memory(recording):
    from opentelemetry import trace

    tracer = TracerProvider().get_tracer("framework")
    first = below = tracer.start_span("invoke_agent planner", attributes=named("planner"))
    for _ in range(3):
        below = tracer.start_span("step", trace.set_span_in_context(below, context.Context()))
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    with trace.use_span(below):
        assert name_here() == ("planner", "span")


def test_a_name_that_nobody_chose_gives_way_to_one_that_somebody_did(span):
    with lt.agent("support"), span("invoke_agent", **named("Strands Agents")):
        assert name_here() == ("support", "with")
    with span("invoke_agent", **named("Strands Agents")):
        assert name_here() == ("Strands Agents", "span")


ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def _by_aiohttp(url: str, headers: dict[str, str]) -> None:
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=ASKED) as response:
        await response.read()


def _by_openai(url: str, headers: dict[str, str]) -> None:
    with openai.OpenAI(base_url=url.removesuffix("/chat/completions"), api_key="none", max_retries=0) as client:
        client.chat.completions.create(**ASKED, extra_headers=headers)


every_client = pytest.mark.parametrize(
    "post",
    [
        lambda url, headers: httpx.post(url, json=ASKED, headers=headers),
        lambda url, headers: requests.post(url, json=ASKED, headers=headers, timeout=9),
        lambda url, headers: asyncio.run(_by_aiohttp(url, headers)),
        _by_openai,
    ],
    ids=["httpx", "requests", "aiohttp", "openai"],
)


@every_client
def test_our_baggage_goes_beside_the_users(recording, model, post):
    """Before: theirs took its place, and the gateway knew neither the rollout nor the agent."""
    with lt.rollout("t", rollout_id="r"), lt.agent("writer"):
        post(f"{model.base_url}/chat/completions", {"Baggage": "tenant=one,user=two"})
    ((_, headers, _),) = model.requests
    members = dict(member.split("=") for member in headers["baggage"].split(","))
    assert (members["tenant"], members["user"]) == ("one", "two")
    assert (members[semconv.ROLLOUT_ID], members[semconv.AGENT_NAME]) == ("r", "writer")


@pytest.fixture
def instrumented(monkeypatch):
    """As OpenTelemetry's instrumentation of httpx: below our hook, a span of its own and the headers of its context."""
    tracer = TracerProvider().get_tracer("opentelemetry.instrumentation.httpx")
    sent = httpx.HTTPTransport.handle_request

    def handle_request(transport, request):
        with tracer.start_as_current_span("POST"):
            propagate.inject(request.headers)
            return sent(transport, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle_request)
    token = context.attach(baggage.set_baggage("tenant", "one"))
    yield
    context.detach(token)


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("routed", [True, False], ids=["routed", "addressed"])
def test_the_gateway_knows_the_caller_whatever_is_written_below_our_hook(begin, daemon, host, routed):
    """Before: OpenTelemetry's instrumentation of httpx replaced both headers: no rollout, no agent, another parent."""
    daemon.select("prose", "writer")
    begin()
    base_url = host.base_url if routed else f"{daemon.url}/v1"
    with lt.rollout("t", rollout_id="r"), lt.agent("writer"):
        httpx.post(f"{base_url}/chat/completions", json=ASKED)
    ((_, headers, _),) = daemon.requests
    assert headers["baggage"] == "tenant=one"
    caller, (call,) = read_caller(Headers(headers)), daemon.chats()
    assert (caller.trace_id, caller.parent_span_id) == (call.trace_id, call.span_id)
    assert (caller.attributes[semconv.ROLLOUT_ID], caller.attributes[semconv.AGENT_NAME]) == ("r", "writer")
    assert semconv.SEQUENCE in caller.attributes


@every_client
@pytest.mark.parametrize("way", ["routed", "addressed", "by url"])
@pytest.mark.parametrize("capture_content", [True, False])
def test_the_gateway_knows_whether_texts_may_be_recorded(begin, daemon, host, post, way, capture_content):
    """Before: a client that records none had them all recorded by the gateway as soon as a policy claimed it."""
    daemon.select("prose", "writer")
    begin()
    lt.init(capture_content=capture_content)
    base_url = {"routed": host.base_url, "addressed": f"{daemon.url}/v1", "by url": f"{daemon.url}/rollouts/r/v1"}[way]
    agent = lt.agent("writer") if way == "routed" else contextlib.nullcontext()  # nothing else to say of the others
    with agent:
        post(f"{base_url}/chat/completions", {})
    ((_, headers, _),) = daemon.requests
    assert read_caller(Headers(headers)).capture_content is capture_content


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("text", ["t" * 9000, "A question? " * 90, "質" * 300, "質" * 5000], ids=len)
def test_nor_does_what_is_written_below_our_hook_or_a_long_name_change_that(begin, daemon, host, text):
    """Before: with a task that was named by its question, the gateway ignored the whole header, or refused the call."""
    daemon.select("prose", "writer")
    begin(capture_content=False)
    with lt.rollout(text, attempt_id="a", rollout_id="r", mode="evaluate"), lt.agent("writer"), lt.state(text):
        httpx.post(f"{host.base_url}/chat/completions", json=ASKED)
    ((_, headers, _),) = daemon.requests
    caller = read_caller(Headers(headers))
    assert not caller.capture_content
    assert caller.attributes.items() >= {
        (semconv.ROLLOUT_ID, "r"),
        (semconv.ATTEMPT_ID, "a"),
        (semconv.ROLLOUT_MODE, "evaluate"),
        (semconv.AGENT_NAME, "writer"),
    }
    assert semconv.SEQUENCE in caller.attributes
    assert len(headers["x-lightning-baggage"]) <= 4096
    (call,) = daemon.chats()
    assert call.attributes[semconv.TASK_ID] == text


@pytest.mark.parametrize("text", ["t" * 1024, "Why is the sky blue?", "質" * 200])
def test_the_gateway_knows_a_task_whose_name_is_not_too_long(text):
    said = read_caller(Headers({"baggage": hosts.baggage(Identity("r", "a", text, "g"), Agent("writer", "decorator"))}))
    assert (said.attributes[semconv.TASK_ID], said.attributes[semconv.GROUP_ID]) == (text, "g")


def test_a_host_that_is_not_the_daemon_gets_our_context_once(recording, model):
    lt.init(capture_content=False)
    with lt.rollout("t"), lt.agent("writer"):
        httpx.post(f"{model.base_url}/chat/completions", json=ASKED)
    ((_, headers, _),) = model.requests
    assert not [name for name in headers if name.startswith("x-lightning-")]
