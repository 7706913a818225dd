"""What tokens were drawn from goes out with the answer, where it is asked for, and nothing else is touched."""

import base64
import json
from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput, SamplingMask
from vllm.sampling_params import StructuredOutputsParams

from lightning_trainer.gateway.engine.sse import support_in, without_support
from lightning_trainer.sampling import Support, pattern_of, support_of
from lightning_trainer.serving.host.tokens import support_answer
from lightning_trainer.serving.host.tokens.support import LEFT_OUT, SEEN, new_set
from lightning_trainer.serving.host.tokens.support_answer import answer_with_support, read_masks, use_for_engine

pytestmark = pytest.mark.torch

VOCABULARY = 40
ASKS = {"type": "http", "headers": [(b"x-lightning-support", b"1")]}
NINE = new_set(pattern_of([9], VOCABULARY)).tolist()


def _output(masks, *, index: int = 0, finish: str | None = "stop") -> RequestOutput:
    mask = None if masks is None else SamplingMask(masks)
    choice = CompletionOutput(index, "", [1], None, None, finish_reason=finish, sampling_mask=mask)
    return RequestOutput("r", None, [1], None, [choice], finish is not None)


class Engine:
    """As much of vLLM's as is listened to: one response, given beforehand."""

    def __init__(self, *outputs: RequestOutput) -> None:
        self.outputs = outputs
        self.closed = False
        self.model_config = SimpleNamespace(get_vocab_size=lambda: VOCABULARY)

    async def generate(self, prompt, sampling_params, request_id):
        try:
            for output in self.outputs:
                yield output
        finally:
            self.closed = True


def _app(engine, parameters, *, stream: bool):
    """Answers as vLLM's app does: a whole JSON body at the end, or an event an output."""

    async def app(scope, receive, send):
        kind = b"text/event-stream" if stream else b"application/json"
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        if stream:
            await send(start)
        async for output in engine.generate("p", parameters, "r"):
            if stream:
                event = f'data: {{"end":{json.dumps(output.outputs[0].finish_reason)}}}\n\n'
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        if stream:
            return await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        body = b'{"text":"a,\\"lightning_support\\":"}'
        start["headers"].append((b"content-length", str(len(body)).encode()))
        await send(start)
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    return app


async def _answered(engine, parameters, *, stream: bool = False, scope=ASKS) -> tuple[dict, bytes]:
    use_for_engine(engine)
    sent = []

    async def send(message):
        sent.append(message)

    await answer_with_support(_app(engine, parameters, stream=stream), scope, None, send)  # pyright: ignore[reportArgumentType]
    return dict(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent[1:])


def _read(said) -> Support:
    return Support.decode(base64.b64decode(said["support"]))


@pytest.fixture(autouse=True)
def _request_output_as_it_was(monkeypatch):
    monkeypatch.setattr(RequestOutput, "add", RequestOutput.add)


async def test_a_whole_answer_has_it_as_its_last_field_and_its_length_is_right():
    headers, body = await _answered(Engine(_output([NINE, [], [SEEN, 0]])), SamplingParams(top_k=1))
    assert headers[b"content-length"] == str(len(body)).encode()
    plain, said = without_support(body)
    assert plain == b'{"text":"a,\\"lightning_support\\":"}'
    assert json.loads(plain)
    assert json.loads(body).keys() == {"text", "lightning_support"}
    assert _read(said["0"]) == support_of(VOCABULARY, [[9], None, [9]])


async def test_a_stream_has_it_right_before_the_end_of_the_choice():
    engine = Engine(_output(None, finish=None), _output([NINE]))
    headers, body = await _answered(engine, SamplingParams(top_k=1), stream=True)
    events = body.split(b"\n\n")
    assert [event.startswith(b'data: {"lightning_support"') for event in events] == [False, True, False, False, False]
    said = support_in(events[1].removeprefix(b"data: "))
    assert said is not None
    assert _read(said["0"]) == support_of(VOCABULARY, [[9]])
    assert headers[b"x-lightning-support"] == b"1"


@pytest.mark.parametrize("stream", [False, True])
async def test_who_does_not_ask_gets_the_bytes_as_they_are(stream):
    scope = {**ASKS, "headers": []}
    headers, body = await _answered(Engine(_output([NINE])), SamplingParams(top_k=1), stream=stream, scope=scope)
    assert b'{"0":' not in body
    assert b"x-lightning-support" not in headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_restricts_nothing_is_vouched_for_and_has_none(stream):
    headers, body = await _answered(Engine(_output(None)), SamplingParams(temperature=0.5), stream=stream)
    assert b'{"0":' not in body
    assert headers[b"x-lightning-support"] == b"1"


@pytest.mark.parametrize(
    ("masks", "asked", "sentence"),
    [
        (None, {"top_k": 1}, "the engine wrote nothing down"),
        ([NINE, [LEFT_OUT]], {"top_k": 1}, "takes more than 16 MiB"),
        ([[SEEN, 2]], {"top_k": 1}, "names a set of entries that it has not sent"),
        ([NINE], {"top_k": 1, "extra_args": {"mine": 1}}, "the request asked for extra_args"),
    ],
)
async def test_what_is_not_known_is_a_sentence(masks, asked, sentence):
    _, body = await _answered(Engine(_output(masks)), SamplingParams(**asked))
    said = without_support(body)[1]["0"]
    assert said.keys() == {"unknown"}
    assert sentence in said["unknown"]


def test_plain_ids_as_vllm_writes_them_are_read_too():
    assert read_masks([[4, 5, 30], [], [4, 5, 30]], VOCABULARY) == support_of(
        VOCABULARY, [[4, 5, 30], None, [4, 5, 30]]
    )


def test_too_much_is_refused_whoever_wrote_it(monkeypatch):
    monkeypatch.setattr(support_answer, "LIMIT_BYTES", 16)
    with pytest.raises(ValueError, match="takes more than"):
        read_masks([[entry] for entry in range(5)], VOCABULARY)


async def test_a_grammar_that_allows_nothing_is_the_callers_mistake():
    nothing = new_set(pattern_of([], VOCABULARY)).tolist()
    parameters = SamplingParams(structured_outputs=StructuredOutputsParams(json={"$ref": "#"}))
    with pytest.raises(VLLMValidationError, match="allows no token here"):
        await _answered(Engine(_output([nothing], finish="error")), parameters)


async def test_pieces_that_are_put_together_keep_the_mask():
    engine = Engine()
    use_for_engine(engine)
    first, last = _output(None, finish=None), _output([NINE])
    first.add(last, aggregate=True)
    assert first.outputs[0].sampling_mask == SamplingMask([NINE])


async def test_who_stops_listening_ends_the_engines_generation():
    engine = Engine(_output(None, finish=None), _output([NINE]))
    use_for_engine(engine)
    outputs = engine.generate("p", SamplingParams(), "r")
    await anext(outputs)
    await outputs.aclose()
    assert engine.closed
