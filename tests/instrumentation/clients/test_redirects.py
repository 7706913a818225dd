"""A host that the user named sends a call on to one that nobody named: that one gets what it would get without us."""

import asyncio
import json
import sys
from typing import Any

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids
from lightning_instrumentation.wire.call import silence

_stubs = sys.modules["lightning_test_stubs"]
PATH = "/v1/chat/completions"


class Server(_stubs.ModelServer):
    """Keeps every byte that it is sent; with ``sends_to`` set it answers with a redirect and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        server = self
        self.raw: list[bytes] = []
        self.sends_to: str | None = None
        self.status = 307

        stub: Any = self._handler

        class Handler(stub):
            def read(self) -> bytes:
                body = super().read()
                server.raw.append(self.raw_requestline + self.headers.as_string().encode() + body)
                return body

            def do_POST(self) -> None:
                if server.sends_to is None:
                    super().do_POST()
                    return
                self.read()
                self.answer(server.status, b"", {"location": server.sends_to + self.path})

            def do_GET(self) -> None:
                self.read()
                self.answer(200, b"{}", {"content-type": "application/json"})

        self._handler = Handler


@pytest.fixture
def servers():
    """The one that the user named, one more, and a stranger."""
    made = Server(), Server(), Server()
    for server in made:
        server.start()
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def begin(receiver, tmp_path):
    lt.shutdown(0.0)
    yield lambda *trusted: lt.init(receiver.url, spool_dir=tmp_path, trusted_hosts=[server.url for server in trusted])
    lt.shutdown(1.0)


DOCUMENT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hé"}], "temperature": 0.5}


def by_openai(url):
    with openai.OpenAI(base_url=url.removesuffix("/chat/completions"), api_key="k", max_retries=0) as client:
        return client.chat.completions.with_raw_response.create(**DOCUMENT).text


def by_async_openai(url):
    async def ask():
        async with openai.AsyncOpenAI(
            base_url=url.removesuffix("/chat/completions"), api_key="k", max_retries=0
        ) as client:
            stream = await client.chat.completions.create(**DOCUMENT, stream=True)
            return [chunk.model_dump() async for chunk in stream]

    return asyncio.run(ask())


def by_httpx(library):
    def ask(url):
        with library.Client(follow_redirects=True) as client:
            return client.post(url, json=DOCUMENT, headers={"Authorization": "Bearer k"}).content

    def ask_async(url):
        async def post():
            async with library.AsyncClient(follow_redirects=True) as client:
                return (await client.post(url, content=json.dumps(DOCUMENT))).content

        return asyncio.run(post())

    return ask, ask_async


def by_requests(url):
    return requests.post(url, json=DOCUMENT, headers={"Accept-Encoding": "gzip;q=0.5"}, timeout=9).content


def by_careless_requests(url):
    """A recipe that many follow: nothing of the request is taken out at redirects."""

    class Session(requests.Session):
        def rebuild_auth(self, prepared_request, response):
            pass

    return Session().post(url, data=json.dumps(DOCUMENT), timeout=9).content


def by_aiohttp(**body):
    def ask(url):
        async def post():
            async with aiohttp.ClientSession() as session, session.post(url, **body) as response:
                return await response.read()

        return asyncio.run(post())

    return ask


CALLERS = {
    "openai": by_openai,
    "openai-async-stream": by_async_openai,
    "httpx": by_httpx(httpx)[0],
    "httpx-async": by_httpx(httpx)[1],
    "httpx2": by_httpx(httpx2)[0],
    "httpx2-async": by_httpx(httpx2)[1],
    "requests": by_requests,
    "requests-careless": by_careless_requests,
    "aiohttp": by_aiohttp(json=DOCUMENT),
    "aiohttp-bytes": by_aiohttp(data=json.dumps(DOCUMENT).encode()),
}


def as_sent(raw: bytes) -> tuple[str, dict[str, str], bytes]:
    """Request line, headers and body; the order of headers means nothing, nor does the case of their names."""
    head, _, body = raw.partition(b"\n\n")
    line, *headers = head.decode().splitlines()
    return line, {name.lower(): value for name, _, value in (header.partition(": ") for header in headers)}, body


def unwatched(ask, url):
    with silence():
        return ask(url)


@pytest.mark.parametrize("status", [307, 302])
@pytest.mark.parametrize("caller", CALLERS)
def test_a_stranger_behind_a_redirect_gets_what_it_would_get_without_us(begin, servers, caller, status):
    named, also_named, stranger = servers
    named.sends_to, also_named.sends_to = also_named.url, stranger.url
    named.status = 307
    also_named.status = status
    begin(named, also_named)
    ask = CALLERS[caller]
    if "openai" in caller and status == 302:
        pytest.skip("the answer to a GET is not a completion")
    expected = unwatched(ask, named.url + PATH)
    without_us, stranger.raw = stranger.raw, []
    assert ask(named.url + PATH) == expected
    assert [as_sent(raw) for raw in stranger.raw] == [as_sent(raw) for raw in without_us]
    assert len(without_us) == 1
    for server in (named, also_named):
        plain, asked = server.raw
        assert b"traceparent" not in plain
        assert b"traceparent" in asked
        assert b'"return_token_ids":' in asked.replace(b" ", b"")


@pytest.mark.parametrize("caller", CALLERS)
def test_a_redirect_among_hosts_that_were_named_keeps_the_ids(begin, receiver, servers, caller):
    named, also_named, _ = servers
    named.sends_to = also_named.url
    begin(named, also_named)
    ask = CALLERS[caller]
    expected = unwatched(ask, named.url + PATH)
    assert ask(named.url + PATH) == expected
    assert lt.flush()
    (span,) = receiver.spans("chat")
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)])


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_redirect_that_the_caller_follows_is_the_callers_own_request(begin, servers, library):
    named, _, stranger = servers
    named.sends_to = stranger.url
    begin(named)
    with library.Client() as client:
        response = client.post(named.url + PATH, json=DOCUMENT)
        client.send(response.next_request)
        assert "traceparent" not in response.request.headers
    (sent,) = stranger.raw
    assert b"traceparent" not in sent
    assert json.loads(sent.partition(b"\n\n")[2]) == DOCUMENT


def test_a_redirect_that_the_caller_of_requests_follows_is_their_own_request(begin, servers):
    named, _, stranger = servers
    named.sends_to = stranger.url
    begin(named)
    with requests.Session() as session:
        response = session.post(named.url + PATH, json=DOCUMENT, allow_redirects=False, timeout=9)
        assert response.next is not None
        session.send(response.next, timeout=9)
    (sent,) = stranger.raw
    assert b"traceparent" not in sent
    assert json.loads(sent.partition(b"\n\n")[2]) == DOCUMENT


def test_the_requests_that_an_answer_tells_of_are_the_callers(begin, servers):
    named, also_named, _ = servers
    named.sends_to = also_named.url
    begin(named, also_named)
    answers: list[Any] = [requests.post(named.url + PATH, json=DOCUMENT, timeout=9)]
    with httpx.Client(follow_redirects=True) as client:
        answers.append(client.post(named.url + PATH, json=DOCUMENT))
    for answer in answers:
        assert len(answer.history) == 1
        for one in (*answer.history, answer):
            assert "traceparent" not in one.request.headers


def test_hosts_are_named_in_the_environment_where_the_program_names_none(begin, servers, monkeypatch):
    named, also_named, _ = servers
    monkeypatch.setenv("LIGHTNING_TRUSTED_HOSTS", f" localhost:{named.port}, {also_named.url},")
    begin()
    for server in servers:
        httpx.post(server.url + PATH, json=DOCUMENT)
    assert [b"traceparent" in server.raw[0] for server in servers] == [True, True, False]


def test_half_a_surrogate_pair_neither_loses_a_span_nor_changes_what_is_said(begin, receiver, servers):
    """Python's JSON reads such text; it has no UTF-8."""
    named, _, _ = servers
    begin(named)
    said = "half \ud83d of é"
    document = {"model": "m", "messages": [{"role": "system", "content": said}, {"role": "user", "content": "hello"}]}
    before = dict(lt.stats().failed)
    response = requests.post(named.url + PATH, data=json.dumps(document), timeout=9)
    assert response.status_code == 200
    assert json.loads(named.raw[0].partition(b"\n\n")[2])["messages"] == document["messages"]
    assert lt.flush()
    (span,) = receiver.spans("chat")
    message, _ = json.loads(span.attributes[semconv.INPUT_MESSAGES])
    assert message["parts"][0]["content"] == said
    assert dict(lt.stats().failed) == before


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_stranger_asked_by_the_callers_own_client_inside_of_a_call_gets_nothing_of_ours(servers, begin, library: Any):
    named, _, stranger = servers

    class AsksFirst(library.Client):
        def send(self, request: Any, **options: Any) -> Any:
            with library.Client() as other:
                other.post(stranger.url + PATH, json=DOCUMENT)
            return super().send(request, **options)

    begin(named)
    with AsksFirst() as own, openai.OpenAI(base_url=named.base_url, api_key="k", http_client=own) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    (strangers,) = stranger.raw
    assert not any(header in strangers.lower() for header in (b"traceparent", b"baggage", b"return_token_ids"))
    assert b"traceparent" in named.raw[0].lower()
