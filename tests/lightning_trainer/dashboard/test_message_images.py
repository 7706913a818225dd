"""Pictures in messages: drawn from here alone, by what their bytes are, never by what a message says of them."""

import base64
import hashlib
import json
import re
import struct
from dataclasses import replace
from urllib.parse import parse_qs

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import input_messages

from lightning_trainer.dashboard.reading.conversation import conversation
from lightning_trainer.dashboard.reading.message_images import find_image, image_of, is_embedded
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.types import Span

_PNG_HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR"


def part(body: bytes, mime: str = "image/png") -> dict:
    return {"type": "blob", "modality": "image", "mime_type": mime, "content": base64.b64encode(body).decode()}


def png(width: int, height: int) -> bytes:
    return _PNG_HEAD + struct.pack(">II", width, height) + bytes(9)


def webp(chunk: bytes, rest: bytes) -> bytes:
    return b"RIFF\x00\x00\x00\x00WEBP" + chunk + b"\x00\x00\x00\x00" + rest


@pytest.mark.parametrize(
    ("body", "kind", "size"),
    [
        (png(240, 150), "image/png", (240, 150)),
        (b"GIF89a" + struct.pack("<HH", 7, 9), "image/gif", (7, 9)),
        # An application segment of 2 + 3 bytes, then a baseline frame: length, precision, height, width.
        (b"\xff\xd8\xff\xe0\x00\x05abc\xff\xc0\x00\x11\x08" + struct.pack(">HH", 20, 30), "image/jpeg", (30, 20)),
        (webp(b"VP8X", bytes(4) + b"\x0f\x00\x00\x1f\x00\x00"), "image/webp", (16, 32)),
        (webp(b"VP8L", b"\x2f" + (9 | 19 << 14).to_bytes(4, "little")), "image/webp", (10, 20)),
        (webp(b"VP8 ", bytes(6) + struct.pack("<HH", 64, 48)), "image/webp", (64, 48)),
    ],
)
def test_the_type_and_the_size_are_what_the_bytes_say(body, kind, size):
    image = image_of(part(body, mime="text/html"))
    assert image is not None
    assert (image.kind, (image.width, image.height), image.body) == (kind, size, body)


@pytest.mark.parametrize(
    "body",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        b"<script>alert(1)</script>",
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0\xff\xff",
        b"RIFF....WEBPVP9 ",
        png(100_000, 100_000),
        png(0, 5),
    ],
)
def test_markup_what_is_cut_and_what_would_unfold_are_not_drawn(body):
    assert image_of(part(body)) is None


def test_what_is_no_base64_or_too_long_is_not_drawn():
    assert image_of({"type": "blob", "content": "not base64!"}) is None
    assert image_of({"type": "blob", "content": base64.b64encode(png(2, 2)).decode() + "A" * 12_000_000}) is None
    assert not is_embedded({"type": "blob", "content": 7})
    assert find_image("not json", "x") is None
    assert find_image('[{"parts": 3}, 4]', "x") is None


async def test_a_rollout_shows_its_picture_and_the_picture_is_nothing_but_one(get):
    page = await get("/rollout?id=r-photo")
    (address,) = re.findall(r'<img src="(/image\?[^"]*)"', page.text)
    assert re.search(r"image/png, [\d,]+ bytes", page.text)
    assert "https://shop.example/claims/4755/lid.jpg" in page.text, "a reference is said, and not fetched"
    assert "image/svg+xml, " in page.text
    answer = await get(address.replace("&amp;", "&"))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content.startswith(b"\x89PNG")


async def test_an_image_that_is_none_is_not_found(get):
    page = await get("/rollout?id=r-photo")
    (address,) = re.findall(r'<img src="(/image\?[^"]*)"', page.text)
    address = address.replace("&amp;", "&")
    svg = hashlib.sha256(b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"/>').hexdigest()
    for other in (svg, "0" * 32):
        answer = await get(re.sub(r"name=\w+", f"name={other}", address))
        assert (answer.status_code, "has no image" in answer.text) == (404, True)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_picture_that_a_tool_returned_is_shown_with_its_text(wrapped: bool) -> None:
    content = [
        {"type": "text", "text": "The page now:"},
        {"type": "image", "mimeType": "image/png", "data": base64.b64encode(png(8, 6)).decode()},
    ]
    attributes = {
        semconv.OPERATION: semconv.EXECUTE_TOOL,
        semconv.TOOL_NAME: "screenshot",
        semconv.TOOL_CALL_ARGUMENTS: "{}",
        semconv.TOOL_CALL_RESULT: json.dumps({"content": content} if wrapped else content),
    }
    span = Span("t" * 32, "s" * 16, None, "execute_tool screenshot", start_ns=1, end_ns=2, attributes=attributes)
    (kept,) = exchange([span]).spans
    ((entry,), _) = conversation([kept])
    assert [part.kind for part in entry.parts] == ["tool_call", "text", "image"]
    assert hashlib.sha256(png(8, 6)).hexdigest() in (entry.parts[2].image or "")
    ((plain,), _) = conversation([replace(span, attributes=attributes | {semconv.TOOL_CALL_RESULT: "sha256: unknown"})])
    assert [part.kind for part in plain.parts] == ["tool_call", "tool_call_response"]


@pytest.mark.parametrize("by_store", [True, False])
def test_a_picture_in_a_tools_result_in_a_message_is_shown_with_its_text(by_store: bool) -> None:
    """Before: its reference was shown as JSON where no span of the tool was recorded, as by a gateway alone."""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part(png(8, 6))['content']}"}}
    said = [{"type": "text", "text": "The page now:"}, picture if by_store else part(png(8, 6))]
    messages = json.dumps(input_messages([{"role": "tool", "tool_call_id": "c", "content": said}]))
    attributes = {semconv.OPERATION: semconv.CHAT, semconv.INPUT_MESSAGES: messages}
    span = Span("t" * 32, "s" * 16, None, "chat", start_ns=1, end_ns=2, attributes=attributes)
    if by_store:
        (span,) = exchange([span]).spans
    ((entry,), _) = conversation([span])
    assert (entry.role, [one.kind for one in entry.parts]) == ("tool", ["text", "image"])
    name = parse_qs(entry.parts[1].image or "")["name"][0]
    if by_store:
        assert name == hashlib.sha256(png(8, 6)).hexdigest()
    else:
        assert find_image(messages, name) == image_of(part(png(8, 6)))


def test_a_picture_that_the_tools_own_span_shows_is_shown_once() -> None:
    said = [{"type": "image", "mimeType": "image/png", "data": base64.b64encode(png(8, 6)).decode()}]
    result = json.dumps(said)
    tool = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_CALL_ID: "c", semconv.TOOL_CALL_RESULT: result}
    messages = json.dumps([{"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": said}]}])
    chat = {semconv.OPERATION: semconv.CHAT, semconv.INPUT_MESSAGES: messages}
    spans = exchange(
        [Span("t" * 32, f"{n}" * 16, None, "x", n, n + 1, one) for n, one in enumerate((tool, chat))]
    ).spans
    ((entry,), _) = conversation(spans)
    assert [one.kind for one in entry.parts] == ["image"]
