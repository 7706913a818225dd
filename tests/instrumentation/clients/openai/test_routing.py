"""Calls of claimed agents arrive at the gateway and bring nothing of the user's; all others are what they were."""

import asyncio
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.clients.openai import gateway
from lightning_instrumentation.spans.packing import unpack_token_ids
from lightning_instrumentation.wire.call import silence
from opentelemetry import context
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel

SECRETS = ("sk-secret", "org-secret", "proj-secret", "extra-secret", "default-secret", "cookie-secret", "http-secret")


@lt.agent("writer")
def writer(function, *args, **kwargs):
    return function(*args, **kwargs)


@lt.agent("judge")
def judge(function, *args, **kwargs):
    return function(*args, **kwargs)


def options_of(host, **changes):
    return {
        "base_url": host.base_url,
        "api_key": "sk-secret",
        "organization": "org-secret",
        "project": "proj-secret",
        "default_headers": {"X-Default": "default-secret"},
        "max_retries": 0,
        **changes,
    }


def asking(text="hello", **changes):
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **changes}


@pytest.fixture
def client(host):
    with openai.OpenAI(**options_of(host)) as client:
        yield client


@pytest.fixture
async def async_client(host):
    async with openai.AsyncOpenAI(**options_of(host)) as client:
        yield client


def bodies(server):
    return [body for _, _, body in server.requests]


def check_nothing_of_the_users(daemon):
    sent = b"\n".join(daemon.raw)
    assert sent
    assert not [secret for secret in SECRETS if secret.encode() in sent]
    assert {path for path, _, _ in daemon.requests} == {"/v1/chat/completions"}


def test_one_client_object_serves_both_hosts(begin, daemon, host, client):
    daemon.select("prose", "wri*")
    begin()
    routed = writer(client.chat.completions.create, **asking("one"))
    stayed = judge(client.chat.completions.create, **asking("two"))
    client.chat.completions.create(**asking("three"))
    assert routed.choices[0].message.content == "answer0 to one "
    assert stayed.choices[0].message.content == "answer0 to two "
    assert [body["model"] for body in bodies(daemon)] == ["prose"]
    assert [(body["model"], body["messages"][0]["content"]) for body in bodies(host)] == [
        ("gpt-4o", "two"),
        ("gpt-4o", "three"),
    ]
    check_nothing_of_the_users(daemon)
    first, second, third = daemon.chats()
    assert first.name == "chat prose"
    assert {key: value for key, value in first.attributes.items() if "route" in key} == {
        semconv.ROUTE_POLICY: "prose",
        semconv.ROUTE_FROM_URL: f"{host.base_url}/chat/completions",
        semconv.ROUTE_FROM_MODEL: "gpt-4o",
    }
    assert first.attributes[semconv.SERVER_PORT] == daemon.port
    assert first.attributes[semconv.AGENT_NAME] == "writer"
    assert not [key for span in (second, third) for key in span.attributes if "route" in key]
    _, headers, _ = daemon.requests[0]
    assert headers["traceparent"].split("-")[1:3] == [first.trace_id, first.span_id]
    assert headers["authorization"] == "Bearer lightning"


def test_calls_of_others_are_the_same_byte_for_byte(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()

    def everything():
        judge(client.chat.completions.create, **asking(extra_headers={"X-More": "m"}, extra_query={"q": "1"}))
        list(judge(client.chat.completions.create, **asking(stream=True)))
        client.chat.completions.with_raw_response.create(**asking(extra_body={"model": "other"}))

    everything()
    watched, host.raw = host.raw, []
    with silence():
        everything()
    assert watched == host.raw
    assert len(watched) == 3
    assert not daemon.requests


class Point(BaseModel):
    x: int


def test_a_call_that_another_instrumentation_suppresses_is_routed_and_recorded(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()
    token = context.attach(context.set_value("suppress_instrumentation", True))
    try:
        lt.agent("writer")(client.chat.completions.create)(**asking("hello"))
    finally:
        context.detach(token)
    assert [body["model"] for body in bodies(daemon)] == ["prose"]
    assert not host.requests
    (span,) = daemon.chats()
    assert span.attributes[semconv.ROUTE_POLICY] == "prose"


def test_a_call_below_a_frameworks_own_span_is_routed_by_the_name_on_it(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()
    tracer = TracerProvider().get_tracer("framework")
    invoked = tracer.start_as_current_span("invoke_agent writer", attributes={semconv.AGENT_NAME: "writer"})
    with invoked, tracer.start_as_current_span("chat"):
        client.chat.completions.create(**asking("hello"))
    assert [body["model"] for body in bodies(daemon)] == ["prose"]
    assert not host.requests
    (span,) = daemon.chats()
    assert (span.attributes[semconv.AGENT_NAME], span.attributes[semconv.AGENT_SOURCE]) == ("writer", "span")


def test_every_way_of_asking_is_routed(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()

    @lt.agent("writer")
    def ask_in_every_way():
        create = client.chat.completions.create
        chunks = [chunk.choices[0].delta.content or "" for chunk in create(**asking("a b", stream=True))]
        raw = client.chat.completions.with_raw_response.create(**asking("raw"))
        raw_stream = client.chat.completions.with_raw_response.create(**asking("raw stream", stream=True)).parse()
        raw_chunks = [chunk.choices[0].delta.content or "" for chunk in raw_stream]
        with client.chat.completions.with_streaming_response.create(**asking("lines")) as response:
            streamed = json.loads(response.read())
        parsed = client.chat.completions.parse(**asking("json", response_format=Point))
        with client.with_options(timeout=5).chat.completions.stream(**asking("helper")) as events:
            helped = events.get_final_completion()
        client.chat.completions.create(
            **asking(
                "extras",
                extra_headers={"Authorization": "Bearer extra-secret", "X-Api-Key": "extra-secret", "api-key": "x"},
                extra_query={"key": "extra-secret"},
                extra_body={"model": "other", "top_k": 3},
            )
        )
        return (
            "".join(chunks),
            raw.parse().choices[0].message.content,
            "".join(raw_chunks),
            streamed["choices"][0]["message"]["content"],
            parsed.choices[0].message.parsed,
            helped.choices[0].message.content,
        )

    assert ask_in_every_way() == (
        "answer0 to a b ",
        "answer0 to raw ",
        "answer0 to raw stream ",
        "answer0 to lines ",
        Point(x=7),
        "answer0 to helper ",
    )
    assert not host.requests
    assert [body["model"] for body in bodies(daemon)] == ["prose"] * 7
    assert bodies(daemon)[-1]["top_k"] == 3
    check_nothing_of_the_users(daemon)
    assert {span.attributes[semconv.ROUTE_POLICY] for span in daemon.chats()} == {"prose"}
    assert len(daemon.chats()) == 7


async def test_async_calls_and_streams_are_routed(begin, daemon, host, async_client):
    daemon.select("prose", "writer")
    begin()

    @lt.agent("writer")
    async def ask():
        whole = await async_client.chat.completions.create(**asking("whole"))
        stream = await async_client.chat.completions.create(**asking("pieces", stream=True))
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        raw = await async_client.chat.completions.with_raw_response.create(**asking("raw"))
        return whole.choices[0].message.content, "".join(pieces), raw.parse().choices[0].message.content

    assert await ask() == ("answer0 to whole ", "answer0 to pieces ", "answer0 to raw ")
    await async_client.chat.completions.create(**asking("mine"))
    assert len(daemon.requests) == 3
    assert len(host.requests) == 1
    check_nothing_of_the_users(daemon)


def test_what_a_custom_http_client_adds_stays_with_the_user(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    seen = []
    http = httpx2.Client(
        headers={"X-Http": "http-secret"},
        cookies={"session": "cookie-secret"},
        auth=("user", "http-secret"),
        event_hooks={"request": [lambda request: seen.append(request.url.port)]},
    )
    client = openai.OpenAI(**options_of(host, http_client=http))
    writer(client.chat.completions.create, **asking())
    judge(client.chat.completions.create, **asking())
    check_nothing_of_the_users(daemon)
    assert "cookie" not in daemon.requests[0][1]
    assert b"http-secret" in host.raw[0]
    assert seen == [host.port]


def test_what_the_environment_configures_stays_with_the_user(begin, daemon, host, monkeypatch):
    for name, value in {
        "OPENAI_API_KEY": "sk-secret",
        "OPENAI_ORG_ID": "org-secret",
        "OPENAI_PROJECT_ID": "proj-secret",
        "OPENAI_CUSTOM_HEADERS": "X-Custom: default-secret",
        "OPENAI_BASE_URL": host.base_url,
        "HTTP_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    daemon.select("prose", "writer")
    begin()
    writer(openai.OpenAI(max_retries=0).chat.completions.create, **asking())
    check_nothing_of_the_users(daemon)


async def test_azure_clients_are_routed_without_key_deployment_and_version(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    azure = {"azure_endpoint": host.url, "api_version": "2024-10-21", "max_retries": 0}
    sync = openai.AzureOpenAI(api_key="sk-secret", **azure)
    writer(sync.chat.completions.create, **asking())
    judge(sync.chat.completions.create, **asking())
    asynchronous = openai.AsyncAzureOpenAI(azure_ad_token="sk-secret", azure_deployment="d", **azure)

    @lt.agent("writer")
    async def ask():
        await asynchronous.chat.completions.create(**asking())

    await ask()
    assert [body["model"] for body in bodies(daemon)] == ["prose", "prose"]
    check_nothing_of_the_users(daemon)
    assert [path for path, _, _ in host.requests] == [
        "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"
    ]
    assert "?" not in daemon.chats()[0].attributes[semconv.ROUTE_FROM_URL]


def test_the_daemons_token_goes_to_the_daemon_alone(begin, daemon, host, client):
    daemon.token = "daemon-token-0123456789"
    daemon.select("prose", "writer")
    begin(token=daemon.token)
    writer(client.chat.completions.create, **asking())
    judge(client.chat.completions.create, **asking())
    assert daemon.requests[0][1]["authorization"] == f"Bearer {daemon.token}"
    assert daemon.token.encode() not in host.raw[0]


def test_with_a_wrong_token_nothing_is_routed_and_it_says_why(begin, daemon, host, client, caplog):
    daemon.token = "daemon-token-0123456789"
    daemon.select("prose", "writer")
    begin(token="another")
    writer(client.chat.completions.create, **asking())
    writer(client.chat.completions.create, **asking())
    assert len(host.requests) == 2
    # A daemon that has another token is not the one whose token this is: it is not even sent that.
    assert not any("another" in str(request) for request in daemon.requests)
    said = [
        message for record in caplog.records if "calls go where they always went" in (message := record.getMessage())
    ]
    assert len(said) == 1
    assert "does not prove that it is your daemon" in said[0]


def test_threads_with_one_client_object_keep_their_agents_apart(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()
    start = threading.Barrier(16)

    def ask(number):
        start.wait()
        for turn in range(3):
            agent = (writer, judge)[(number + turn) % 2]
            agent(client.chat.completions.create, **asking(f"{agent.__name__} {number} {turn}", stream=turn == 1))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))
    assert len(daemon.requests) == len(host.requests) == 24
    assert {body["messages"][0]["content"].split()[0] for body in bodies(daemon)} == {"writer"}
    assert {body["messages"][0]["content"].split()[0] for body in bodies(host)} == {"judge"}
    check_nothing_of_the_users(daemon)


async def test_tasks_with_one_client_object_keep_their_agents_apart(begin, daemon, host, async_client):
    daemon.select("prose", "writer")
    begin()

    async def ask(name, number):
        @lt.agent(name)
        async def speak():
            await asyncio.sleep(0)
            await async_client.chat.completions.create(**asking(f"{name} {number}"))

        await speak()

    await asyncio.gather(*(ask(("writer", "judge")[number % 2], number) for number in range(40)))
    assert {body["messages"][0]["content"].split()[0] for body in bodies(daemon)} == {"writer"}
    assert {body["messages"][0]["content"].split()[0] for body in bodies(host)} == {"judge"}
    assert len(daemon.requests) == len(host.requests) == 20


def test_one_async_client_in_several_event_loops(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    client = openai.AsyncOpenAI(**options_of(host))

    @lt.agent("writer")
    async def ask():
        return (await client.chat.completions.create(**asking("again"))).choices[0].message.content

    assert [asyncio.run(ask()) for _ in range(3)] == ["answer0 to again "] * 3
    assert len(daemon.requests) == 3


def test_without_a_daemon_calls_go_where_they_always_went(begin, daemon, host, client, caplog):
    daemon.select("prose", "writer")
    daemon.stop()
    begin(refresh_s=0.0)
    for _ in range(3):
        writer(client.chat.completions.create, **asking())
    assert [body["model"] for body in bodies(host)] == ["gpt-4o"] * 3
    assert len([record for record in caplog.records if "calls go where they always went" in record.getMessage()]) == 1


def test_a_daemon_that_comes_later_is_found(begin, daemon, host, client):
    daemon.select("prose", "writer")
    daemon.stop()
    begin(refresh_s=0.0)
    writer(client.chat.completions.create, **asking())
    assert len(host.requests) == 1
    daemon.start()
    for _ in range(1000):
        writer(client.chat.completions.create, **asking())
        if daemon.requests:
            break
    assert bodies(daemon)[0]["model"] == "prose"


def test_a_daemon_that_goes_lets_the_calls_go_home(begin, daemon, host, client, caplog):
    daemon.select("prose", "writer")
    begin()
    writer(client.chat.completions.create, **asking("routed"))
    daemon.stop()
    before = lt.stats().failed.get("route-fallback", 0)
    answers = [writer(client.chat.completions.create, **asking("home")) for _ in range(3)]
    assert {answer.choices[0].message.content for answer in answers} == {"answer0 to home "}
    assert [body["model"] for body in bodies(host)] == ["gpt-4o"] * 3
    assert host.requests[0][1]["authorization"] == "Bearer sk-secret"
    assert "traceparent" not in host.requests[0][1]
    assert lt.stats().failed["route-fallback"] >= before + 1
    daemon.start()
    span = next(span for span in daemon.chats() if semconv.ROUTE_FELL_BACK in span.attributes)
    assert span.attributes[semconv.REQUEST_MODEL] == "gpt-4o"
    assert span.attributes[semconv.SERVER_PORT] == host.port
    assert span.error is None


async def test_an_async_call_and_a_stream_go_home_too(begin, daemon, host, async_client):
    daemon.select("prose", "writer")
    begin()

    @lt.agent("writer")
    async def ask(**changes):
        return await async_client.chat.completions.create(**asking("home", **changes))

    await ask()
    daemon.stop()
    stream = await ask(stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "answer0 to home "
    assert len(host.requests) == 1


def test_a_host_that_is_trusted_is_asked_for_ids_when_a_call_comes_home(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin(trusted_hosts=[host.url])
    writer(client.chat.completions.create, **asking())
    assert "return_token_ids" not in bodies(daemon)[0]
    daemon.stop()
    answer = writer(client.chat.completions.create, **asking())
    assert bodies(host)[0]["return_token_ids"] is True
    assert (
        "token_ids" not in (answer.choices[0].model_extra or {}) or answer.choices[0].model_extra["token_ids"] is None
    )
    daemon.start()
    span = next(span for span in daemon.chats() if semconv.ROUTE_FELL_BACK in span.attributes)
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)])


def test_without_fallback_a_claimed_call_fails_rather_than_go_elsewhere(begin, daemon, host, client, monkeypatch):
    monkeypatch.setenv("LIGHTNING_ROUTE_FALLBACK", "0")
    daemon.select("prose", "writer")
    begin()
    writer(client.chat.completions.create, **asking())
    daemon.stop()
    for _ in range(2):
        with pytest.raises(openai.APIConnectionError):
            writer(client.chat.completions.create, **asking())
    judge(client.chat.completions.create, **asking())
    assert [body["model"] for body in bodies(host)] == ["gpt-4o"]


def test_an_error_of_the_gateway_is_the_callers_and_not_asked_elsewhere(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()
    with pytest.raises(openai.BadRequestError):
        writer(client.chat.completions.create, **asking("status 400"))
    assert not host.requests
    assert daemon.chats()[0].error is not None


def test_retries_go_to_the_same_place_as_one_call(begin, daemon, host, client, monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.0)
    daemon.select("prose", "writer")
    begin()
    with pytest.raises(openai.InternalServerError):
        writer(client.with_options(max_retries=2).chat.completions.create, **asking("status 503"))
    assert [headers["x-stainless-retry-count"] for _, headers, _ in daemon.requests] == ["0", "1", "2"]
    assert len({headers["traceparent"] for _, headers, _ in daemon.requests}) == 1
    assert len(daemon.chats()) == 1
    assert not host.requests


def test_a_daemon_that_dies_between_two_attempts_gets_no_second_sample_elsewhere(
    begin, daemon, host, client, monkeypatch
):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.0)
    daemon.select("prose", "writer")
    begin()
    monkeypatch.setattr(openai.OpenAI, "_sleep_for_retry", lambda *args, **kwargs: daemon.stop())
    with pytest.raises(openai.APIConnectionError):
        writer(client.with_options(max_retries=1).chat.completions.create, **asking("status 503"))
    assert not host.requests


def test_limits_of_the_users_client_hold(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()
    writer(client.with_options(timeout=7).chat.completions.create, **asking())
    writer(client.chat.completions.create, **asking(timeout=9))
    assert [headers["x-stainless-read-timeout"] for _, headers, _ in daemon.requests] == ["7", "9"]


def test_copies_of_a_client_share_the_connections_to_the_gateway(begin, daemon, host, client, monkeypatch):
    # Before: a client of ours for each copy, which left its connection to the garbage collector
    made = []
    make = gateway._make
    monkeypatch.setattr(gateway, "_make", lambda *options: made.append(make(*options)) or made[-1])
    daemon.select("prose", "writer")
    begin()
    for seconds in (7, 8, 9):
        writer(client.with_options(timeout=seconds, max_retries=seconds).chat.completions.create, **asking())
    assert [headers["x-stainless-read-timeout"] for _, headers, _ in daemon.requests] == ["7", "8", "9"]
    assert len(made) == 1


def test_what_the_gateway_does_not_serve_goes_where_it_always_went(begin, daemon, host, client, caplog):
    daemon.paths = ["/chat/completions"]
    daemon.select("prose", "writer")
    begin()
    writer(client.responses.create, model="gpt-4o", input="hello")
    writer(client.completions.create, model="gpt-4o", prompt="hello")
    assert [path for path, _, _ in host.requests] == ["/v1/responses", "/v1/completions"]
    assert not daemon.requests
    assert len([record for record in caplog.records if "does not serve" in record.getMessage()]) == 2


def test_other_formats_are_routed_where_the_gateway_serves_them(begin, daemon, host, client):
    daemon.select("prose", "writer")
    begin()
    writer(client.responses.create, model="gpt-4o", input="hello")
    writer(client.responses.create, model="gpt-4o", input="hello", previous_response_id="resp_1")
    assert [(path, body["model"]) for path, _, body in daemon.requests] == [("/v1/responses", "prose")]
    assert [body["previous_response_id"] for body in bodies(host)] == ["resp_1"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_of_the_gateway_is_continued_there_which_says_that_it_keeps_none(
    begin, daemon, host, client, stream
):
    # Before: the host was asked about a response that it never gave.
    daemon.select("prose", "writer")
    begin()
    first = writer(client.responses.create, model="gpt-4o", input="hello", stream=stream)
    response_id = list(first)[-1].response.id if stream else first.id
    writer(client.responses.create, model="gpt-4o", input="again", previous_response_id=response_id)
    judge(client.responses.create, model="gpt-4o", input="again", previous_response_id=response_id)
    assert [body.get("previous_response_id") for body in bodies(daemon)] == [None, response_id]
    assert [body["input"] for body in bodies(host)] == ["again"]


def test_a_closed_client_stays_closed(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    client = openai.OpenAI(**options_of(host))
    client.close()
    with pytest.raises((RuntimeError, openai.APIConnectionError)):
        writer(client.chat.completions.create, **asking())
    assert not daemon.requests


def test_calls_that_go_to_the_daemon_anyway_are_left_alone(begin, daemon):
    daemon.select("prose", "writer")
    begin()
    client = openai.OpenAI(base_url=f"{daemon.url}/rollouts/r1/v1", api_key="mine")
    writer(client.chat.completions.create, **asking())
    path, headers, body = daemon.requests[0]
    assert (path, headers["authorization"], body["model"]) == (
        "/rollouts/r1/v1/chat/completions",
        "Bearer mine",
        "gpt-4o",
    )
    assert semconv.ROUTE_POLICY not in daemon.chats()[0].attributes


@pytest.mark.parametrize(("options", "variable"), [({"route": False}, "1"), ({}, "0"), ({}, "off")])
def test_routing_can_be_switched_off(begin, daemon, host, client, monkeypatch, options, variable):
    monkeypatch.setenv("LIGHTNING_ROUTE", variable)
    daemon.select("prose", "*")
    begin(**options)
    writer(client.chat.completions.create, **asking())
    assert len(host.requests) == 1
    assert daemon.asked == 0
    assert len(daemon.chats()) == 1


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch):
    lt.shutdown(0.0)
    monkeypatch.setenv("LIGHTNING_ROUTE", "maybe")
    with pytest.raises(lt.ConfigurationError, match="LIGHTNING_ROUTE is 'maybe'; write 1 or 0"):
        lt.init("http://127.0.0.1:9")


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_another_instrumentation_sees_a_routed_call_once(begin, daemon, host, monkeypatch, kind):
    """OpenInference wraps ``OpenAI.request``: the client of ours that carries the call must not come by there."""
    seen = []

    def watching(own):
        def request(self, *args, **kwargs):
            seen.append(str(self.base_url))
            return own(self, *args, **kwargs)

        return request

    for one in (openai.OpenAI, openai.AsyncOpenAI):
        monkeypatch.setattr(one, "request", watching(one.request), raising=False)
    daemon.select("prose", "writer")
    begin()
    if kind == "sync":
        with openai.OpenAI(**options_of(host)) as client:
            writer(client.chat.completions.create, **asking())
    else:
        async with openai.AsyncOpenAI(**options_of(host)) as client:
            await writer(client.chat.completions.create, **asking())
    assert seen == [f"{host.base_url}/"]
    assert len(bodies(daemon)) == 1


async def test_a_users_mock_answers_also_where_a_policy_claims_the_agent(begin, daemon, host):
    """Before, the unit test of an agent asked the policy, and was recorded for training."""
    daemon.select("prose", "writer")
    begin()
    answer = {"id": "mock", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    library = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    mocked = library.MockTransport(lambda request: library.Response(200, json=answer))
    with openai.OpenAI(**options_of(host, http_client=library.Client(transport=mocked))) as client:
        assert writer(client.chat.completions.create, **asking()).id == "mock"
    http = library.AsyncClient(transport=mocked)
    async with openai.AsyncOpenAI(**options_of(host, http_client=http)) as client:
        with lt.agent("writer"):
            assert (await client.chat.completions.create(**asking())).id == "mock"
    assert not daemon.requests
