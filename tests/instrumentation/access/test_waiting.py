"""A daemon that hangs holds up no event loop and no call for longer than the call would have waited anyway."""

import asyncio
import contextlib
import socket
import threading
import time

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation.access import proof as proofs
from lightning_instrumentation.access.patience import shortest
from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.runtime import runtime

TOKEN = "the-token-of-this-users-daemon"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def hung():
    """The URL of a process that is stopped: the kernel accepts connections, and nothing answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    lt.shutdown(0.0)  # not before: it would wait for its own delivery there


@pytest.fixture
def hangs(daemon):
    """Let the daemon stop answering challenges until the end of the test."""
    event, stub = threading.Event(), daemon._handler

    class Handler(stub):
        def do_GET(self):
            if started.is_set():
                event.wait(20)
            super().do_GET()

    started = threading.Event()
    daemon._handler = Handler
    daemon.stop()
    daemon.start()
    yield started
    event.set()


async def by_httpx(url, timeout, library=httpx):
    async with library.AsyncClient(timeout=timeout, verify=False) as client:
        return (await client.post(url, json=BODY)).status_code


async def by_aiohttp(url, timeout):
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
        session.post(url, json=BODY) as response,
    ):
        return response.status


async def by_openai(url, timeout):
    base_url = url.removesuffix("/chat/completions")
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk", max_retries=0, timeout=timeout) as client:
        await client.chat.completions.create(**BODY)
        return 200


ASYNC = {"httpx": by_httpx, "httpx2": lambda *of: by_httpx(*of, library=httpx2), "aiohttp": by_aiohttp}
ASYNC["openai"] = by_openai


async def stood_still(calls) -> tuple[float, list]:
    """Return the longest time that the event loop stood still during the calls, and what they returned."""
    gaps, last = [0.0], time.monotonic()

    async def tick() -> None:
        nonlocal last
        while True:
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = asyncio.create_task(tick())
    returned = await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0.03)
    ticking.cancel()
    return max(gaps), returned


@pytest.mark.long
async def test_an_event_loop_goes_on_while_the_daemon_that_it_calls_hangs(hung, tmp_path):
    """In every library at once: whichever of them waits in the loop stops it for the others too."""
    lt.shutdown(0.0)
    lt.init(hung, spool_dir=tmp_path, token=TOKEN, route=False)
    url, began = f"{hung}/v1/chat/completions", time.monotonic()
    still, failed = await stood_still([ask(url, 2.0) for ask in ASYNC.values() for _ in range(3)])
    took = time.monotonic() - began
    assert all(isinstance(error, Exception) for error in failed)
    assert still < 1.5
    assert took < 8.0, "beside each other, and no longer than twice the callers' timeout"


@pytest.mark.long
async def test_an_event_loop_goes_on_while_the_daemon_of_a_routed_call_hangs(begin, daemon, host, hangs):
    daemon.token = TOKEN
    daemon.select("prose", "writer")
    begin(token=TOKEN)
    url = f"{host.base_url}/chat/completions"
    with lt.agent("writer"):
        for number, ask in enumerate(ASYNC.values(), start=1):
            assert await ask(url, 30.0) == 200
            assert len(daemon.requests) == number
        lt.flush(
            20
        )  # the delivery of these calls has a proof of its own, which could end after the daemon is forgotten
        hangs.set()
        started = runtime()
        assert started is not None
        started.router.access.forget()
        still, answered = await stood_still([ask(url, 30.0) for ask in ASYNC.values() for _ in range(2)])
    assert answered == [200] * 2 * len(ASYNC)
    assert len(host.requests) == 2 * len(ASYNC), "and the calls went where they always went"
    assert still < 1.5


def test_trios_event_loop_goes_on_as_well(hung, tmp_path):
    trio = pytest.importorskip("trio", reason="needs trio, which none of our environments has: pip install trio")
    lt.shutdown(0.0)
    lt.init(hung, spool_dir=tmp_path, token=TOKEN, route=False)
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            last = time.monotonic()
            await trio.sleep(0.01)
            gaps.append(time.monotonic() - last)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            await trio.sleep(0.05)
            with pytest.raises(httpx.TimeoutException):
                await by_httpx(f"{hung}/v1/chat/completions", 2.0)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert max(gaps) < 1.5


def test_a_call_on_no_loop_waits_no_longer_than_its_own_timeout(hung, tmp_path):
    lt.shutdown(0.0)
    lt.init(hung, spool_dir=tmp_path, token=TOKEN, route=False)
    began = time.monotonic()
    for ask in (httpx.post, requests.post):
        with pytest.raises((httpx.TimeoutException, requests.Timeout)):
            ask(f"{hung}/v1/chat/completions", json=BODY, timeout=0.3)
    took = time.monotonic() - began
    assert took < 3.0


def test_threads_wait_for_one_proof_together_and_a_slow_failure_is_remembered(hung, monkeypatch):
    monkeypatch.setattr(proofs, "BUSY_S", 1.0)
    access, opens = Access(hung, TOKEN), []
    monkeypatch.setattr(access, "_connected", lambda limit: opens.append(limit) or Access._connected(access, limit))

    def wait() -> None:
        with contextlib.suppress(OSError):
            access.opened(30.0)

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(opens) == 1
    with pytest.raises(TimeoutError):
        access.opened(30.0)
    assert len(opens) == 1
    access.forget()
    with pytest.raises(TimeoutError, match=r"no proof within 0\.1 s"):
        access.opened(0.1)
    assert len(opens) == 2


def test_a_daemon_that_refused_a_connection_is_found_as_soon_as_it_listens(daemon):
    daemon.token = TOKEN
    daemon.stop()
    access = Access(daemon.url, TOKEN)
    with pytest.raises(ConnectionRefusedError):
        access.opened()
    daemon.start()
    assert access.opened() == TOKEN


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (None, float("inf")),
        (object(), float("inf")),
        (3, 3.0),
        ((1.5, None), 1.5),
        ({"connect": 5.0, "read": 2.0, "pool": None}, 2.0),
        (httpx.Timeout(5.0, read=1.0), 1.0),
        (aiohttp.ClientTimeout(total=None, sock_read=4), 4.0),
    ],
)
def test_the_shortest_of_a_callers_limits_counts_however_it_is_written(timeout, seconds):
    assert shortest(timeout) == seconds
