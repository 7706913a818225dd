"""Plain HTTP: calls of claimed agents arrive at the gateway and bring nothing of the user's; all others stay as is."""

import asyncio
import datetime
import json
import threading
from typing import Any

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import pytest
import requests
from lightning_instrumentation import runtime, semconv
from lightning_instrumentation.clients.httpx import gateway_client
from lightning_instrumentation.clients.outgoing import Outgoing
from lightning_instrumentation.routing import router as router_module
from lightning_instrumentation.spans.packing import unpack_token_ids
from lightning_instrumentation.wire.call import silence

SECRETS = ("sk-secret", "default-secret", "cookie-secret", "http-secret", "query-secret")
HEADERS = {"Authorization": "Bearer sk-secret", "X-Http": "http-secret", "Cookie": "a=cookie-secret"}
TOKEN = "daemon-token-0123456789"


def document(said="hello", **more) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": said}], **more}


def by_httpx(library):
    def ask(url, body):
        with library.Client(headers=HEADERS, params={"key": "query-secret"}) as client:
            if not body.get("stream"):
                return client.post(url, json=body).content
            with client.stream("POST", url, json=body) as response:
                return b"".join(response.iter_bytes())

    def ask_async(url, body):
        async def post():
            async with library.AsyncClient(headers=HEADERS, auth=("user", "http-secret")) as client:
                if not body.get("stream"):
                    return (await client.post(url, json=body)).content
                async with client.stream("POST", url, json=body) as response:
                    return b"".join([data async for data in response.aiter_bytes()])

        return asyncio.run(post())

    return ask, ask_async


def by_requests(url, body):
    with requests.Session() as session:
        session.headers.update(HEADERS)
        session.cookies.set("session", "cookie-secret")
        with session.post(url, json=body, stream=bool(body.get("stream")), timeout=9) as response:
            return response.content


def by_aiohttp(url, body):
    async def post():
        async with (
            aiohttp.ClientSession(headers=HEADERS, cookies={"session": "cookie-secret"}) as session,
            session.post(url, json=body) as response,
        ):
            return await response.read()

    return asyncio.run(post())


CALLERS = {
    "httpx": by_httpx(httpx)[0],
    "httpx-async": by_httpx(httpx)[1],
    "httpx2": by_httpx(httpx2)[0],
    "httpx2-async": by_httpx(httpx2)[1],
    "requests": by_requests,
    "aiohttp": by_aiohttp,
}


def as_agent(agent, function, *args):
    return lt.agent(agent)(function)(*args)


def said_in(content: bytes) -> str:
    """The text of an answer, whole or streamed."""
    if not content.startswith(b"data:"):
        return json.loads(content)["choices"][0]["message"]["content"]
    events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event]
    parts = [json.loads(event) for event in events if event != b"[DONE]"]
    return "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("caller", CALLERS)
def test_claimed_calls_go_to_the_gateway_and_all_others_stay(begin, daemon, host, caller, stream):
    daemon.token = TOKEN
    daemon.select("prose", "wri*")
    begin(token=TOKEN)
    ask, url = CALLERS[caller], f"{host.base_url}/chat/completions"
    more = {"stream": True} if stream else {}
    assert said_in(as_agent("writer", ask, url, document("one", **more))) == "answer0 to one "
    assert said_in(as_agent("judge", ask, url, document("two", **more))) == "answer0 to two "
    assert said_in(ask(url, document("three", **more))) == "answer0 to three "
    ((path, headers, body),) = daemon.requests
    assert (path, body["model"], headers["authorization"]) == ("/v1/chat/completions", "prose", f"Bearer {TOKEN}")
    assert [(sent["model"], sent["messages"][0]["content"]) for _, _, sent in host.requests] == [
        ("gpt-4o", "two"),
        ("gpt-4o", "three"),
    ]
    assert not [secret for secret in SECRETS if secret.encode() in b"\n".join(daemon.raw)]
    assert TOKEN.encode() not in b"\n".join(host.raw)
    first, *others = daemon.chats()
    assert len(others) == 2
    assert {key: value for key, value in first.attributes.items() if "route" in key} == {
        semconv.ROUTE_POLICY: "prose",
        semconv.ROUTE_FROM_URL: url,
        semconv.ROUTE_FROM_MODEL: "gpt-4o",
    }
    assert headers["traceparent"].split("-")[1:3] == [first.trace_id, first.span_id]
    assert "answer0 to one" in first.attributes[semconv.OUTPUT_MESSAGES]
    assert not [key for span in others for key in span.attributes if "route" in key]


@pytest.mark.parametrize("caller", CALLERS)
def test_calls_of_others_are_the_same_byte_for_byte(begin, daemon, host, caller):
    daemon.select("prose", "writer")
    begin()
    ask, url = CALLERS[caller], f"{host.base_url}/chat/completions"
    as_agent("judge", ask, url, document())
    watched, host.raw = host.raw, []
    with silence():
        as_agent("writer", ask, url, document())
    assert watched == host.raw
    assert len(watched) == 1
    assert not daemon.requests


@pytest.mark.parametrize("caller", CALLERS)
def test_a_daemon_that_goes_lets_the_calls_go_home(begin, daemon, host, caller):
    daemon.select("prose", "writer")
    begin(trusted_hosts=[host.url])
    ask, url = CALLERS[caller], f"{host.base_url}/chat/completions"
    as_agent("writer", ask, url, document("routed"))
    daemon.stop()
    answers = [as_agent("writer", ask, url, document("home")) for _ in range(2)]
    assert [said_in(answer) for answer in answers] == ["answer0 to home "] * 2
    assert [body["model"] for _, _, body in host.requests] == ["gpt-4o"] * 2
    assert host.requests[0][2]["return_token_ids"] is True
    assert "authorization" in host.requests[0][1]
    daemon.start()
    span = next(span for span in daemon.chats() if semconv.ROUTE_FELL_BACK in span.attributes)
    assert span.attributes[semconv.REQUEST_MODEL] == "gpt-4o"
    assert span.attributes[semconv.SERVER_PORT] == host.port
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)])
    assert span.error is None


@pytest.mark.parametrize("caller", CALLERS)
def test_without_fallback_a_claimed_call_fails_rather_than_go_elsewhere(begin, daemon, host, caller, monkeypatch):
    monkeypatch.setenv("LIGHTNING_ROUTE_FALLBACK", "0")
    daemon.select("prose", "writer")
    begin()
    ask, url = CALLERS[caller], f"{host.base_url}/chat/completions"
    as_agent("writer", ask, url, document())
    daemon.stop()
    with pytest.raises((httpx.ConnectError, httpx2.ConnectError, OSError, aiohttp.ClientConnectorError)):
        as_agent("writer", ask, url, document())
    assert not host.requests


@pytest.mark.parametrize("caller", CALLERS)
def test_a_claimed_call_over_our_limit_is_the_gateways_to_refuse(begin, daemon, host, caller, monkeypatch):
    """Before: it went to the caller's own host, unrecorded, with and without a way back there."""
    monkeypatch.setenv("LIGHTNING_ROUTE_FALLBACK", "0")
    daemon.select("prose", "writer")
    begin(max_body_bytes=1000)
    ask, url = CALLERS[caller], f"{host.base_url}/chat/completions"
    assert b"error" in as_agent("writer", ask, url, document("status 413 " + "long " * 400))
    assert not host.requests
    as_agent("judge", ask, url, document("long " * 400))
    assert len(host.requests) == len(daemon.requests) == 1
    daemon.stop()
    with pytest.raises((httpx.ConnectError, httpx2.ConnectError, OSError, aiohttp.ClientConnectorError)):
        as_agent("writer", ask, url, document("long " * 400))
    assert len(host.requests) == 1


@pytest.mark.parametrize("caller", CALLERS)
def test_an_error_of_the_gateway_is_the_callers(begin, daemon, host, caller):
    daemon.select("prose", "writer")
    begin()
    url = f"{host.base_url}/chat/completions"
    assert b"error" in as_agent("writer", CALLERS[caller], url, document("status 400"))
    assert not host.requests
    assert daemon.chats()[0].attributes[semconv.HTTP_STATUS] == 400


def test_what_an_answer_tells_of_is_the_callers_request(begin, daemon, host):
    daemon.select("prose", "*")
    begin()
    url = f"{host.base_url}/chat/completions"
    for library in (httpx, httpx2, requests):
        response = as_agent("writer", lambda library=library: library.post(url, json=document()))
        assert str(response.url) == str(response.request.url) == url
    assert len(daemon.requests) == 3


def test_the_anthropic_client_is_routed_where_the_gateway_serves_its_format(begin, daemon, host):
    import anthropic

    daemon.paths = [*daemon.paths, "/messages"]
    daemon.select("prose", "writer")
    begin()

    def ask():
        with anthropic.Anthropic(base_url=host.url, api_key="sk-secret", max_retries=0) as client:
            return client.messages.create(model="claude", max_tokens=9, messages=[{"role": "user", "content": "hello"}])

    assert as_agent("writer", ask).content
    ask()
    assert [(path, body["model"]) for path, _, body in daemon.requests] == [("/v1/messages", "prose")]
    assert len(host.requests) == 1
    assert b"sk-secret" not in b"\n".join(daemon.raw)


def test_the_callers_timeout_holds(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    url, slow = f"{host.base_url}/chat/completions", document("slow one two three", stream=True)

    async def by_session():
        timeout = aiohttp.ClientTimeout(sock_read=0.05)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=slow) as response:
            await response.read()

    for ask in (
        lambda: httpx.post(url, json=slow, timeout=0.05),
        lambda: requests.post(url, json=slow, timeout=0.05),
        lambda: asyncio.run(by_session()),
    ):
        with pytest.raises((httpx.ReadTimeout, requests.Timeout, requests.ConnectionError, TimeoutError)):
            as_agent("writer", ask)
    assert len(daemon.requests) == 3
    assert not host.requests


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_callers_number_of_connections_holds(begin, daemon, library):
    """Before, it was the library's default, 100, and the calls beyond failed with a PoolTimeout."""
    begin()
    no_call: Any = None
    out = Outgoing(no_call, own=True)
    for most, kept in ((250, 30), (None, None)):
        with library.Client(limits=library.Limits(max_connections=most, max_keepalive_connections=kept)) as client:
            own, ours = client._transport._pool, gateway_client(library, client, out)._transport._pool
            assert ours._max_connections == own._max_connections >= 250
            assert ours._max_keepalive_connections == own._max_keepalive_connections


@pytest.mark.parametrize("in_bytes", [False, True])
async def test_a_session_writes_what_only_its_own_serializer_can(begin, daemon, host, in_bytes):
    daemon.select("prose", "writer")
    begin()

    def serialize(value):
        return json.dumps(value, default=str)

    own: dict[str, Any] = {"json_serialize": serialize}
    if in_bytes:
        own = {"json_serialize_bytes": lambda value: serialize(value).encode()}
    async with aiohttp.ClientSession(**own) as session:
        with lt.agent("writer"):
            body = document(metadata={"of": datetime.date(2026, 1, 2)})
            async with session.post(f"{host.base_url}/chat/completions", json=body) as response:
                assert response.status == 200
    ((_, _, sent),) = daemon.requests
    assert sent["metadata"] == {"of": "2026-01-02"}


def test_a_closed_client_stays_closed(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    client = httpx.Client()
    client.close()
    with pytest.raises(RuntimeError):
        as_agent("writer", lambda: client.post(f"{host.base_url}/chat/completions", json=document()))
    assert not daemon.requests


async def test_tasks_with_one_session_keep_their_agents_apart(begin, daemon, host):
    daemon.select("prose", "writer")
    begin()
    url = f"{host.base_url}/chat/completions"
    async with aiohttp.ClientSession() as session, httpx.AsyncClient() as client:

        async def ask(name, number):
            @lt.agent(name)
            async def speak():
                if number % 4 < 2:
                    await (await session.post(url, json=document(f"{name} {number}"))).read()
                else:
                    await client.post(url, json=document(f"{name} {number}"))

            await speak()

        await asyncio.gather(*(ask(("writer", "judge")[number % 2], number) for number in range(40)))
    assert {body["messages"][0]["content"].split()[0] for _, _, body in daemon.requests} == {"writer"}
    assert {body["messages"][0]["content"].split()[0] for _, _, body in host.requests} == {"judge"}
    assert len(daemon.requests) == len(host.requests) == 20


@pytest.mark.long
@pytest.mark.parametrize("caller", CALLERS)
def test_a_call_that_no_selection_came_for_in_time_is_counted_and_its_span_says_so(
    begin, daemon, host, caller, monkeypatch
):
    """Before: it went to the paid model without a word, and `explain` advised what had been done."""
    daemon.select("prose", "writer")
    begin()
    come = threading.Event()
    fetch = router_module.fetch_selection
    monkeypatch.setattr(router_module, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(router_module, "fetch_selection", lambda access: come.wait(10) and fetch(access))
    ask, url = CALLERS[caller], f"{host.base_url}/chat/completions"
    before = lt.stats().failed.get("selection-late", 0)
    ask(url, document("of nobody"))
    as_agent("writer", ask, url, document("late"))
    assert lt.stats().failed["selection-late"] == before + 1
    come.set()
    started = runtime.runtime()
    assert started is not None
    assert started.router._answered.wait(10)
    as_agent("writer", ask, url, document("in time"))
    assert [semconv.ROUTE_LATE in span.attributes for span in daemon.chats()] == [False, True, False]
    assert [body["messages"][0]["content"] for _, _, body in daemon.requests] == ["in time"]


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_users_mock_answers_also_where_a_policy_claims_the_agent(begin, daemon, library):
    """Before, the unit test of an agent asked the policy, and was recorded for training."""
    daemon.select("prose", "writer")
    begin()
    mocked = library.MockTransport(lambda request: library.Response(200, json={"id": "mock", "choices": []}))
    clients = library.Client(transport=mocked), library.Client(mounts={"all://api.openai.com": mocked})
    url = "https://api.openai.com/v1/chat/completions"

    async def ask():
        async with library.AsyncClient(transport=mocked) as client:
            return (await client.post(url, json=document())).json()["id"]

    with lt.agent("writer"):
        for client in clients:
            with client:
                assert client.post(url, json=document()).json()["id"] == "mock"
        assert asyncio.run(ask()) == "mock"
    assert not daemon.requests
