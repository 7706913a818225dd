"""Routed calls and spans over TLS, whichever library makes the call: its client beside the user's looks, too."""

import asyncio
import json
import ssl

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation.access.known import KnownDaemon, remember
from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.access.tls import TlsError

TOKEN = "the-token-of-this-users-daemon"
ASKED = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}


def by_openai(base_url):
    with openai.OpenAI(base_url=base_url, api_key="sk-secret", max_retries=0) as client:
        return client.chat.completions.create(**ASKED).choices[0].message.content


def by_async_openai(base_url):
    async def ask():
        async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-secret", max_retries=0) as client:
            return (await client.chat.completions.create(**ASKED)).choices[0].message.content

    return asyncio.run(ask())


def said(content):
    return json.loads(content)["choices"][0]["message"]["content"]


def by_httpx(library):
    def ask(base_url):
        with library.Client() as client:
            return said(client.post(f"{base_url}/chat/completions", json=ASKED).content)

    return ask


def by_requests(base_url):
    return said(requests.post(f"{base_url}/chat/completions", json=ASKED, timeout=9).content)


def by_aiohttp(base_url):
    async def ask():
        async with aiohttp.ClientSession() as session, session.post(f"{base_url}/chat/completions", json=ASKED) as got:
            return said(await got.read())

    return asyncio.run(ask())


CALLERS = {
    "openai": by_openai,
    "async-openai": by_async_openai,
    "httpx": by_httpx(httpx),
    "httpx2": by_httpx(httpx2),
    "requests": by_requests,
    "aiohttp": by_aiohttp,
}


@pytest.fixture
def shows(daemon, authority):
    """``shows(*names)``: from now on the daemon speaks TLS, with a certificate for these."""

    def show(*names: str, signed_by=authority):
        files = signed_by.sign(*names)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*files)
        daemon.stop()
        daemon.speak_tls(context)
        daemon.start()
        return files[0].read_text()

    daemon.token = TOKEN
    daemon.select("prose", "writer")
    return show


@pytest.mark.parametrize("known", ["by its authority", "by what it left"])
@pytest.mark.parametrize("library", CALLERS)
def test_a_routed_call_reaches_the_daemon(shows, begin, daemon, host, authority, library, known):
    left = known == "by what it left"
    shown = shows("a-name-that-nobody-writes" if left else "127.0.0.1")
    if left:
        remember(daemon.url, KnownDaemon(TOKEN, shown))
    begin(token=None if left else TOKEN, ca_file=None if left else authority.file)
    lt.agent("writer")(CALLERS[library])(host.base_url)
    assert len(daemon.requests) == 1
    assert not host.requests
    assert daemon.chats()


@pytest.mark.parametrize("library", CALLERS)
def test_who_shows_another_certificate_gets_nothing_and_the_agent_goes_on(
    shows, begin, daemon, host, authority_class, tmp_path, library, refuses, caplog
):
    remember(daemon.url, KnownDaemon(TOKEN, shows("127.0.0.1")))
    begin()
    ask = lt.agent("writer")(CALLERS[library])
    ask(host.base_url)
    assert (len(daemon.requests), len(host.requests)) == (1, 0)
    assert lt.flush(10)
    shows("127.0.0.1", signed_by=authority_class(tmp_path, "Someone else"))
    for _ in range(2):
        ask(host.base_url)
    assert (len(daemon.requests), len(host.requests)) == (1, 2)
    assert refuses()
    said = [record.getMessage() for record in caplog.records]
    assert len([one for one in said if "it shows another certificate" in one and "spans wait" in one]) == 1


def test_one_that_was_renewed_is_believed_as_soon_as_it_is_left(shows, daemon):
    remember(daemon.url, KnownDaemon(TOKEN, shows("127.0.0.1")))
    access = Access(daemon.url)
    assert access.opened() == TOKEN
    renewed = shows("127.0.0.1")
    access.forget()
    with pytest.raises(TlsError, match="another certificate"):
        access.opened()
    remember(daemon.url, KnownDaemon(TOKEN, renewed))
    access.forget()
    assert access.opened() == TOKEN


def test_a_file_of_authorities_outweighs_what_was_left(shows, daemon, authority, authority_class, tmp_path):
    remember(daemon.url, KnownDaemon(TOKEN, shows("127.0.0.1")))
    assert Access(daemon.url, ca_file=authority.file).opened() == TOKEN
    with pytest.raises(TlsError, match="Set LIGHTNING_CA_FILE"):
        Access(daemon.url, ca_file=authority_class(tmp_path, "Someone else").file).opened()


def test_a_name_that_the_certificate_has_not_is_refused(shows, daemon, authority):
    shows("gpu-box")
    with pytest.raises(TlsError, match="is for another name"):
        Access(daemon.url, TOKEN, ca_file=authority.file).opened()
