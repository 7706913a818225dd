"""Non-text parts of a prompt: images, audio, files, by reference.

Read from ``gen_ai.input.messages``, as our client and the gateway write it. A content part of a kind that the GenAI
conventions do not know is stored as the agent sent it, so anything that is not a text kind counts.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.values import json_of, objects
from lightning_trainer.types import Media, Span

_TEXT_KINDS = (
    "text",
    "input_text",
    "output_text",
    "reasoning",
    "thinking",
    "refusal",
    "tool_call",
    "tool_call_response",
)
MEDIA_FIELDS = (
    *("image_url", "audio_url", "video_url", "input_audio", "file"),
    *("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil", "tool_reference"),
)
"""Fields of a content part in which an engine looks for something other than text, whatever type the part has."""
_OTHER_KIND = re.compile(rf'"type":\s*"(?!(?:{"|".join(_TEXT_KINDS)})")|"(?:{"|".join(MEDIA_FIELDS)})":')
"""In JSON, where quotes inside text are escaped, this can match only outside text."""
_PLACES = ("uri", "url", "file_id", "file_uri")


def media_of(span: Span) -> tuple[Media, ...]:
    """Return the references of a model call's prompt, in order."""
    said = span.attributes.get(semconv.INPUT_MESSAGES)
    # Nearly every prompt is pure text, and parsing the JSON is the costly part.
    if not isinstance(said, str) or _OTHER_KIND.search(said) is None:
        return ()
    return tuple(_reference(part) for message in objects(json_of(said)) for part in _other_parts(message.get("parts")))


def _other_parts(parts: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(parts, list):
        return
    for part in objects(parts):
        if part.get("type") == "tool_call_response":
            yield from _other_parts(part.get("response"))
        elif part.get("type") not in _TEXT_KINDS:
            yield part


def _reference(part: Mapping[str, Any]) -> Media:
    kind = str(part.get("type") or next((field for field in MEDIA_FIELDS if field in part), "unknown"))
    mime_type = part.get("mime_type")
    return Media(
        modality=str(part.get("modality") or kind),
        uri=_uri(part, part.get(kind)),
        mime_type=mime_type if isinstance(mime_type, str) else None,
    )


def _uri(part: Mapping[str, Any], inner: Any) -> str:
    for place in (part, inner):
        if isinstance(place, Mapping):
            for name in _PLACES:
                if isinstance(found := place.get(name), str) and found:
                    return found
    content = part.get("content")
    return f"sha256:{hashlib.sha256(_bytes(content) if isinstance(content, str) else _canonical(part)).hexdigest()}"


def _bytes(content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return content.encode("utf-8", "surrogatepass")


def _canonical(part: Mapping[str, Any]) -> bytes:
    return orjson.dumps(part, option=orjson.OPT_SORT_KEYS)
