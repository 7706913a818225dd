"""Images and the like survive from a span to a call as references; text costs nothing and is never mistaken for one."""

import base64
import hashlib

import orjson
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import input_messages
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids
from lightning_instrumentation.wire.native.gemini import Gemini

from lightning_trainer.ingest.media import media_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.types import Media, Span

_PIXELS = b"\x89PNG not really"
_INLINE = f"data:image/png;base64,{base64.b64encode(_PIXELS).decode()}"
_HASH = f"sha256:{hashlib.sha256(_PIXELS).hexdigest()}"


def _span(messages, **attributes) -> Span:
    said = {semconv.INPUT_MESSAGES: orjson.dumps(messages).decode(), **attributes}
    return Span("1" * 32, "2" * 16, None, "chat", 0, 1, said, scope=semconv.GATEWAY_SCOPE)


def _asked(*content) -> Span:
    """As our client and the gateway write what an OpenAI client sent."""
    return _span(input_messages([{"role": "user", "content": list(content)}]))


@pytest.mark.parametrize(
    ("part", "media"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://host/cat.png"}},
            Media("image", "https://host/cat.png"),
        ),
        ({"type": "image_url", "image_url": {"url": _INLINE}}, Media("image", _HASH, "image/png")),
        ({"type": "input_image", "image_url": _INLINE}, Media("image", _HASH, "image/png")),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _INLINE.split(",")[1]}},
            Media("image", _HASH, "image/png"),
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://host/cat.png"}},
            Media("image", "https://host/cat.png"),
        ),
        ({"type": "file", "file": {"file_id": "file-7"}}, Media("file", "file-7")),
        ({"image_url": "https://host/cat.png"}, Media("image", "https://host/cat.png")),
        ({"image_url": {"url": _INLINE}}, Media("image", _HASH, "image/png")),
        ({"video_url": {"url": "https://host/cat.mp4"}}, Media("video_url", "https://host/cat.mp4")),
    ],
)
def test_a_part_that_is_no_text_is_known_by_reference(part, media):
    span = _asked({"type": "text", "text": "What is this?"}, part)
    assert media_of(span) == (media,)
    assert media_of(exchange([span]).spans[0]) == (media,), "and so where the store keeps the bytes apart"


def test_geminis_inline_bytes_are_known_alike():
    inline = {"inlineData": {"mimeType": "image/png", "data": _INLINE.split(",")[1]}}
    said = Gemini().input_messages({"contents": [{"role": "user", "parts": [{"text": "What?"}, inline]}]})
    assert media_of(_span(said)) == (Media("image", _HASH, "image/png"),)


def test_sound_without_an_address_is_named_by_its_hash():
    span = _asked({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}})
    sound = Media("audio", f"sha256:{hashlib.sha256(bytes(3)).hexdigest()}", "audio/wav")
    assert media_of(span) == media_of(exchange([span]).spans[0]) == (sound,)


def test_a_picture_that_a_tool_answered_counts_too():
    picture = {"type": "uri", "modality": "image", "uri": "https://host/plot.png"}
    parts = [{"type": "tool_call_response", "id": "1", "response": [{"type": "text", "content": "see"}, picture]}]
    assert media_of(_span([{"role": "tool", "parts": parts}])) == (Media("image", "https://host/plot.png"),)


def test_text_that_talks_of_pictures_is_text():
    said = 'send {"type": "image_url", "image_url": {"url": "x"}} or {"type":"uri","modality":"image"}'
    called = {"type": "tool_call", "id": "1", "name": "draw", "arguments": {"type": "image", "uri": "x"}}
    assert media_of(_asked({"type": "text", "text": said})) == ()
    assert media_of(_span([{"role": "assistant", "parts": [called]}])) == ()


@pytest.mark.parametrize("said", [b"bytes", '[{"parts": [{"type": "uri"', '{"type": "uri"}', '[1, {"parts": 3}]'])
def test_what_cannot_be_read_has_no_pictures(said):
    span = Span("1" * 32, "2" * 16, None, "chat", 0, 1, {semconv.INPUT_MESSAGES: said})
    assert media_of(span) == ()


def test_the_call_carries_the_references():
    tokens = {
        semconv.PROMPT_TOKEN_IDS: pack_token_ids((1, 7, 7)),
        semconv.response_token_ids(0): pack_token_ids((3,)),
        semconv.response_logprobs(0): pack_logprobs((-0.5,)),
    }
    messages = input_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}])
    (call,) = read_spans([_span(messages, **tokens)]).calls
    assert call.media == (Media("image", "u"),)
