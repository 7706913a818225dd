"""Each client and HTTP library x wire format x whole or streamed x one or many at once, each cell complete.

Calls made are calls captured, by the right agent in the right rollout, with the engine's own ids, and the caller gets
byte for byte what it gets without us.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_logprobs, unpack_token_ids
from lightning_instrumentation.wire.call import silence

MANY = 6


def body(form: str, said: str, stream: bool) -> dict:
    user = [{"role": "user", "content": said}]
    return {
        "model": "m",
        **({"stream": True} if stream else {}),
        **{
            "chat/completions": {"messages": user},
            "completions": {"prompt": said},
            "responses": {"input": said},
            "messages": {"messages": user, "max_tokens": 9},
        }[form],
    }


def by_httpx(library):
    def call(url, document, stream):
        with library.Client() as client:
            if not stream:
                return client.post(url, json=document).content
            with client.stream("POST", url, json=document) as response:
                return b"".join(response.iter_bytes())

    async def async_call(url, document, stream):
        async with library.AsyncClient() as client:
            if not stream:
                return (await client.post(url, content=json.dumps(document))).content
            async with client.stream("POST", url, json=document) as response:
                return b"".join([data async for data in response.aiter_bytes()])

    return call, async_call


def by_requests(url, document, stream):
    with requests.Session() as session, session.post(url, json=document, stream=stream) as response:
        return b"".join(response.iter_content(None)) if stream else response.content


def by_requests_raw(url, document, stream):
    with requests.post(url, data=json.dumps(document), stream=True) as response:
        return b"".join(iter(lambda: response.raw.read(7, decode_content=True), b""))


async def by_aiohttp(url, document, stream):
    async with aiohttp.ClientSession() as session, session.post(url, json=document) as response:
        return b"".join([data async for data in response.content.iter_any()]) if stream else await response.read()


async def by_aiohttp_lines(url, document, stream):
    async with aiohttp.ClientSession() as session, session.post(url, data=json.dumps(document)) as response:
        return b"".join([line async for line in response.content])


def _resource(client, claude, form):
    made = {
        "chat/completions": client.chat.completions,
        "completions": client.completions,
        "responses": client.responses,
        "messages": claude.messages,
    }
    return made[form].create


def by_client(url, document, stream):
    import anthropic

    base, _, form = url.partition("/v1/")
    with (
        openai.OpenAI(base_url=f"{base}/v1", api_key="k") as client,
        anthropic.Anthropic(base_url=base, api_key="k") as claude,
    ):
        answer = _resource(client, claude, form)(**document)
        return [part.model_dump() for part in answer] if stream else answer.model_dump()


async def by_async_client(url, document, stream):
    import anthropic

    base, _, form = url.partition("/v1/")
    async with (
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="k") as client,
        anthropic.AsyncAnthropic(base_url=base, api_key="k") as claude,
    ):
        answer = await _resource(client, claude, form)(**document)
        return [part.model_dump() async for part in answer] if stream else answer.model_dump()


CALLERS = {
    "client": by_client,
    "client-async": by_async_client,
    "httpx": by_httpx(httpx)[0],
    "httpx-async": by_httpx(httpx)[1],
    "httpx2": by_httpx(httpx2)[0],
    "httpx2-async": by_httpx(httpx2)[1],
    "requests": by_requests,
    "requests-raw": by_requests_raw,
    "aiohttp": by_aiohttp,
    "aiohttp-lines": by_aiohttp_lines,
}
FORMS = ("chat/completions", "completions", "responses", "messages")


def run(call, url, documents, stream):
    """Make the calls at once, each in a rollout and by an agent of its own; return what each caller saw."""
    if asyncio.iscoroutinefunction(call):

        async def one(number):
            async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
                speak = lt.agent(f"agent{number}")(call)
                return await speak(url, documents[number], stream)

        async def every():
            return await asyncio.gather(*(one(number) for number in range(len(documents))))

        return asyncio.run(every())

    def one_sync(number):
        with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            return lt.agent(f"agent{number}")(call)(url, documents[number], stream)

    with ThreadPoolExecutor(len(documents)) as pool:
        return list(pool.map(one_sync, range(len(documents))))


def without_us(call, url, document, stream):
    def suppressed():
        with silence():
            done = call(url, document, stream)
            return asyncio.run(done) if asyncio.iscoroutine(done) else done

    return suppressed()


def sampled(model, form, said):
    formats = sys.modules["lightning_test_formats"]
    return model.ids(model.words({}, said, 0)) if form == "chat/completions" else formats.sampled(said)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("library", CALLERS)
@pytest.mark.parametrize("count", [1, MANY], ids=["single", "concurrent"])
def test_every_call_is_captured_whole_and_unseen(recording, library, form, stream, count):
    model, call = recording.model, CALLERS[library]
    url = f"{model.base_url}/{form}"
    documents = [body(form, f"question {number}", stream) for number in range(count)]
    seen = run(call, url, documents, stream)
    sent = {json.dumps(document, sort_keys=True) for _, _, document in model.requests}
    assert seen == [without_us(call, url, document, stream) for document in documents]

    spans = [*recording.spans("chat"), *recording.spans("text_completion")]
    assert len(spans) == count
    for number, span in enumerate(sorted(spans, key=lambda span: span.attributes[semconv.ROLLOUT_ID])):
        said = f"question {number}"
        ids = sampled(model, form, said)
        read = span.attributes
        assert span.kind == 3
        assert read[semconv.ROLLOUT_ID] == f"r{number}"
        assert read[semconv.AGENT_NAME] == f"agent{number}"
        hook = library.partition("-")[0]
        if hook == "client":
            hook = "httpx2" if form == "messages" else "openai"
        assert read[semconv.CAPTURED_BY] == hook
        assert read[semconv.REQUEST_MODEL] == read[semconv.RESPONSE_MODEL] == "m"
        assert json.loads(read[semconv.INPUT_MESSAGES]) == [
            {"role": "user", "parts": [{"type": "text", "content": said}]}
        ]
        finish = "end_turn" if form == "messages" else "stop"
        text = "".join(["answer0 " if form == "chat/completions" else "answer ", "to ", "question ", f"{number} "])
        assert json.loads(read[semconv.OUTPUT_MESSAGES]) == [
            {"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": finish}
        ]
        assert read.get(semconv.STREAM_COMPLETE) is (True if stream else None)
        assert read[semconv.INPUT_TOKENS] > 0
        assert read[semconv.OUTPUT_TOKENS] > 0
        if form == "messages":
            assert semconv.PROMPT_TOKEN_IDS not in read
            continue
        assert list(unpack_token_ids(read[semconv.response_token_ids(0)])) == ids
        assert len(unpack_token_ids(read[semconv.PROMPT_TOKEN_IDS])) >= 2
        if form != "responses":
            assert unpack_logprobs(read[semconv.response_logprobs(0)])[:2] == (-0.25, -0.5)
            assert len(unpack_logprobs(read[semconv.response_logprobs(0)])) == len(ids)
    assert all("traceparent" in headers for _, headers, _ in model.requests[:count])
    assert len(sent) == count


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("library", CALLERS)
def test_a_stranger_gets_what_it_would_get_without_us(receiver, model, tmp_path, library, form, stream):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    call, url, document = CALLERS[library], f"{model.base_url}/{form}", body(form, "hello", stream)
    (seen,) = run(call, url, [document], stream)
    assert seen == without_us(call, url, document, stream)
    (_, headers, sent), (_, headers_without_us, sent_without_us) = model.requests
    assert list(sent.items()) == list(sent_without_us.items())
    assert {**headers, "host": ""} == {**headers_without_us, "host": ""}
    lt.shutdown()
    (span,) = [*receiver.spans("chat"), *receiver.spans("text_completion")]
    assert "answer" in span.attributes[semconv.OUTPUT_MESSAGES]
    assert semconv.response_token_ids(0) not in span.attributes
