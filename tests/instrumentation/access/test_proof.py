"""Who cannot prove to be the daemon gets neither a prompt nor a token, and the agent goes on as if there were none."""

import asyncio
import http.client
import json
import re
import sys

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation.access import proof as proofs
from lightning_instrumentation.access.known import KnownDaemon, remember
from lightning_instrumentation.access.proof import Access, UnprovenDaemonError, _connection_types, proof
from lightning_instrumentation.runtime import runtime

TOKEN = "the-token-of-this-users-daemon"
PROMPT = "a prompt that is nobody else's affair"
BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": PROMPT}]}


@lt.agent("writer")
def ask(client):
    return client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": PROMPT}])


@pytest.fixture
def client(host):
    with openai.OpenAI(base_url=host.base_url, api_key="sk-secret", max_retries=0) as client:
        yield client


@pytest.fixture
def every_byte(daemon):
    """What whoever listens at the daemon's address is sent."""
    seen = []
    stub = daemon._handler

    class Handler(stub):
        def parse_request(self):
            found = super().parse_request()
            seen.append(self.raw_requestline + self.headers.as_string().encode() if found else b"")
            return found

        def read(self):
            body = super().read()
            seen.append(body)
            return body

    daemon._handler = Handler
    daemon.stop()
    daemon.start()
    return lambda: b"".join(seen)


def test_a_token_that_is_left_after_the_first_look_is_found_by_the_next():
    access = Access("http://127.0.0.1:8321")
    assert access.token is None  # the daemon is starting
    remember(access.endpoint, KnownDaemon(TOKEN))
    assert access.token == TOKEN


def test_the_daemon_that_left_its_token_is_found_and_gets_everything(begin, daemon, host, client):
    daemon.token = TOKEN
    daemon.select("prose", "writer")
    remember(daemon.url, KnownDaemon(TOKEN))
    begin()
    ask(client)
    assert len(daemon.requests) == 1
    assert daemon.requests[0][1]["authorization"] == f"Bearer {TOKEN}"
    assert not host.requests
    assert daemon.chats()


def test_whoever_took_its_port_gets_a_number_and_nothing_else(begin, daemon, host, client, every_byte, refuses, caplog):
    daemon.select("prose", "writer")
    remember(daemon.url, KnownDaemon(TOKEN))  # and what answers does not have it
    begin()
    for _ in range(3):
        ask(client)
    assert len(host.requests) == 3
    assert refuses()
    sent = every_byte()
    assert b"GET /lightning/challenge?nonce=" in sent
    assert PROMPT.encode() not in sent
    assert TOKEN.encode() not in sent
    assert not any(verb in sent for verb in (b"POST", b"selection", b"authorization", b"Authorization"))
    said = [record.getMessage() for record in caplog.records if "does not prove" in record.getMessage()]
    assert len([one for one in said if "calls go where they always went" in one]) == 1
    assert len(said) <= 2  # and once of the spans, which wait


def test_when_the_daemon_is_back_so_are_its_calls_and_spans(begin, daemon, host, client, monkeypatch):
    monkeypatch.setattr(proofs, "_LOOK_AGAIN_S", 0.0)
    daemon.select("prose", "writer")
    remember(daemon.url, KnownDaemon(TOKEN))
    begin(refresh_s=0.0)
    ask(client)
    daemon.token = TOKEN
    lt.flush(10.0)
    for _ in range(200):
        if daemon.requests:
            break
        ask(client)
    assert daemon.requests
    assert lt.flush(20.0)


def by_openai(url):
    base_url = url.removesuffix("/chat/completions")
    with openai.OpenAI(base_url=base_url, api_key="sk", max_retries=0) as client:
        client.chat.completions.create(**BODY)


async def by_openai_async(url):
    base_url = url.removesuffix("/chat/completions")
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk", max_retries=0) as client:
        await client.chat.completions.create(**BODY)


async def by_httpx_async(url):
    async with httpx.AsyncClient() as client:
        await client.post(url, json=BODY)


async def by_aiohttp(url):
    async with aiohttp.ClientSession() as session, session.post(url, json=BODY) as response:
        await response.read()


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (by_openai, openai.APIConnectionError),
        (by_openai_async, openai.APIConnectionError),
        (lambda url: httpx.post(url, json=BODY), httpx.ConnectError),
        (lambda url: httpx2.post(url, json=BODY), httpx2.ConnectError),
        (by_httpx_async, httpx.ConnectError),
        (lambda url: requests.post(url, json=BODY), requests.ConnectionError),
        (by_aiohttp, aiohttp.ClientConnectionError),
    ],
    ids=["openai", "openai-async", "httpx", "httpx2", "httpx-async", "requests", "aiohttp"],
)
def test_a_claimed_call_that_may_not_go_elsewhere_fails_as_its_library_does(
    begin, daemon, host, monkeypatch, ask, error
):
    monkeypatch.setenv("LIGHTNING_ROUTE_FALLBACK", "0")
    daemon.select("prose", "writer")
    daemon.token = TOKEN
    remember(daemon.url, KnownDaemon(TOKEN))
    begin()

    @lt.agent("writer")
    def call():
        asked = ask(f"{host.base_url}/chat/completions")
        if asyncio.iscoroutine(asked):
            asyncio.run(asked)

    call()
    assert len(daemon.requests) == 1
    assert lt.flush(10.0)  # the sender proves its own connection
    daemon.token = "of someone else"
    started = runtime()
    assert started is not None
    started.router.access.forget()
    with pytest.raises(error, match="does not prove") as raised:
        call()
    assert isinstance(raised.value, Exception)
    assert raised.value.__cause__ is not None
    daemon.stop()
    with pytest.raises(error, match="refused"):
        call()
    assert not host.requests


def test_a_client_that_was_pointed_at_the_gateway_needs_no_key(begin, daemon):
    daemon.token = TOKEN
    remember(daemon.url, KnownDaemon(TOKEN))
    begin(route=False)
    direct = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="not-needed", max_retries=0)
    with direct, pytest.raises(openai.AuthenticationError):  # the stub knows the other header alone
        ask(direct)
    headers = {name.lower(): value for name, value in daemon.refused[-1].items()}
    assert headers["authorization"] == "Bearer not-needed"
    assert headers[proofs.TOKEN_HEADER] == TOKEN


def test_a_proof_is_asked_for_once_and_kept_for_a_moment(daemon, every_byte):
    daemon.token = TOKEN
    access = Access(daemon.url, TOKEN)
    for _ in range(20):
        assert access.headers() == {"authorization": f"Bearer {TOKEN}"}
    assert every_byte().count(b"GET /lightning/challenge") == 1
    access.forget()
    access.opened()
    assert every_byte().count(b"GET /lightning/challenge") == 2


def test_an_answer_to_another_challenge_proves_nothing(daemon, monkeypatch):
    daemon.token = TOKEN
    stubs = sys.modules["lightning_test_routing"]
    monkeypatch.setattr(stubs, "proof", lambda token, nonce: proof(token, "0" * 32))
    with pytest.raises(UnprovenDaemonError):
        Access(daemon.url, TOKEN).opened()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"proof": null}', b'{"proof": 7}', '{"proof": "ü"}'.encode()])
def test_no_answer_that_is_no_proof_is_one(body):
    assert not proofs._agree(proofs._read(body).get("proof"), proof(TOKEN, "0" * 32))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        # Before, for each: "(it answered 200 to a challenge) ... Start the daemon there"
        ({"proof": "of another"}, "it is a daemon with another token: set LIGHTNING_TOKEN to what `lightning-trainer"),
        ({"proof": None, "daemon": "d1"}, "it is a daemon without a token: if it is yours, set LIGHTNING_TOKEN=none"),
        ({"hello": 1}, "it is not a lightning-trainer daemon (it answered 200 to a challenge): start the daemon"),
    ],
)
def test_a_wrong_token_is_told_apart_from_another_program(daemon, begin, refuses, caplog, said, sentence):
    daemon.challenged = said
    begin(token="mine")
    with lt.rollout(PROMPT):
        pass
    assert refuses()
    with pytest.raises(UnprovenDaemonError, match=re.escape(sentence)):
        Access(daemon.url, "mine").opened()
    (waiting,) = [message for message in caplog.messages if "has not proven itself; spans wait until" in message]
    assert sentence in waiting


def test_the_token_that_a_daemon_left_is_not_said_to_be_set_wrongly(daemon):
    daemon.token = "of someone else"
    remember(daemon.url, KnownDaemon(TOKEN))
    with pytest.raises(UnprovenDaemonError, match="another token than yours left here: start yours there"):
        Access(daemon.url).opened()


@pytest.mark.parametrize(("status", "passing"), [(502, True), (404, False), (200, False)])
def test_only_where_a_proxy_may_speak_for_a_daemon_that_is_away_is_it_worth_waiting(daemon, status, passing):
    daemon.challenged, daemon.challenge_status = {}, status
    with pytest.raises(UnprovenDaemonError) as raised:
        Access(daemon.url, TOKEN).opened()
    assert raised.value.passing is passing


def test_a_daemon_without_a_token_has_nothing_to_prove(daemon, every_byte):
    assert Access(daemon.url, "none").headers() == {}
    assert Access(daemon.url).headers() == {}
    assert json.dumps(every_byte().decode()) == '""'


class ClosesAfterOne:
    """A daemon, or a proxy before it, that closes each connection after one answer."""

    def __init__(self, daemon) -> None:
        stub = daemon._handler

        class Handler(stub):
            def answer(self, status, body=b"", headers=None) -> None:
                super().answer(status, body, {**(headers or {}), "connection": "close"})
                self.close_connection = True

        daemon._handler = Handler
        daemon.stop()
        daemon.start()


def test_what_was_proven_for_one_connection_is_not_believed_on_the_next(daemon, every_byte, begin, refuses):
    """Python's http.client connects again by itself when the other end has closed: to whoever listens there by then."""
    daemon.token = TOKEN
    ClosesAfterOne(daemon)
    begin(token=TOKEN)
    with lt.rollout(PROMPT):
        pass
    assert refuses()
    with pytest.raises(UnprovenDaemonError, match="closes each connection after one answer"):
        Access(daemon.url, TOKEN).open(2.0)
    sent = every_byte()
    assert b"GET /lightning/challenge?nonce=" in sent
    assert not any(word in sent for word in (b"POST", PROMPT.encode(), TOKEN.encode()))


def test_a_connection_that_was_proven_is_not_opened_again(daemon, every_byte):
    daemon.token = TOKEN
    connection, token = Access(daemon.url, TOKEN).open(2.0)
    assert token == TOKEN
    connection.close()
    with pytest.raises(http.client.NotConnected):
        connection.request("POST", "/v1/traces", b"spans", {"authorization": f"Bearer {token}"})
    assert b"POST" not in every_byte()


@pytest.mark.parametrize("begun_inside", [True, False])
def test_what_is_sent_to_the_daemon_is_not_on_the_users_cassette(begin, daemon, monkeypatch, begun_inside):
    """vcrpy puts its own classes in place of http.client's, and wrote our token and spans to the cassette."""
    recorded = []

    class Recorder:
        def __init__(self, *args, **kwargs):
            self.real_connection = self._baseclass(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

        def request(self, *args, **kwargs):
            recorded.append((args, kwargs))
            return self.real_connection.request(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(self.real_connection, name)

    def begin_cassette():
        for name in ("HTTPConnection", "HTTPSConnection"):
            patched = type(f"VCR{name}", (Recorder,), {"_baseclass": getattr(http.client, name)})
            monkeypatch.setattr(http.client, name, patched)

    daemon.token = TOKEN
    remember(daemon.url, KnownDaemon(TOKEN))
    _connection_types.cache_clear()
    if begun_inside:
        begin_cassette()
    begin()
    lt.reward(1.0, rollout_id="r")
    assert lt.flush()
    if not begun_inside:
        begin_cassette()
        Access(daemon.url, TOKEN).open(1.0)[0].close()
    assert not recorded
