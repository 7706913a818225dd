"""Chat messages of the OpenAI wire format as ``gen_ai.input.messages`` and ``gen_ai.output.messages``.

Each message is a role and a list of parts; a part of a kind that the conventions do not know is kept unchanged, so that
images and future kinds survive from span to sample. Source: OpenTelemetry GenAI semantic conventions.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import orjson

_TEXT_KINDS = ("text", "input_text", "output_text")
_NOTHING_ELSE = {"role", "content"}
_DEEPEST = 16
_MOST_CONTAINERS = 100_000


def field(thing: Any, name: str) -> Any:
    """Read a field of a mapping or of a model object; None if it has none."""
    # Nearly all are plain dicts, and checking the type is cheaper than an abstract check.
    return thing.get(name) if type(thing) is dict or isinstance(thing, Mapping) else getattr(thing, name, None)


def as_json(value: Any) -> str:
    """Return a value as JSON text; never raises for odd values."""
    try:
        return orjson.dumps(value, _plain, _AS_JSON_DOES).decode()
    except TypeError:  # half of a surrogate pair, a key that is not text, or a number beyond 64 bits
        pass
    try:
        return encodable(_encode(value))
    except Exception:  # a key that JSON cannot express, an object that contains itself, or one that raises
        return encodable(_encode(plain_copy(value)))


def encodable(text: str) -> str:
    """Return a text that has a UTF-8 form: half of a surrogate pair has none, and becomes its JSON escape."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _plain(value: Any) -> Any:
    if (dump := own_method(value, "model_dump")) is not None:
        return dump(value, mode="json", exclude_unset=True)
    if isinstance(value, Enum):
        return value.value  # like orjson
    if isinstance(value, (set, frozenset)) or (isinstance(value, Iterable) and not isinstance(value, (str, bytes))):
        return list(value)
    return str(value)


def own_method(value: Any, name: str) -> Callable[..., Any] | None:
    """Return a method that a value's type has; None for a value that merely answers to any name, as a mock does."""
    method = getattr(type(value), name, None)
    return method if callable(method) else None


def plain_copy(value: Any) -> Any:
    """Return a copy that JSON can express; never raises, and reads nothing that can be read only once.

    An iterator, and an object that is inside itself, deeper than 16 levels, or beyond the first 100,000 containers, is
    replaced by the name of its type.
    """
    return _Copying().of(value)


class _Copying:
    __slots__ = ("_above", "_left")

    def __init__(self) -> None:
        self._above: list[int] = []
        """The containers around the current one, by identity."""
        self._left = _MOST_CONTAINERS

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (str, int, float)):
            return value
        inside = id(value) in self._above
        if inside or isinstance(value, Iterator) or len(self._above) == _DEEPEST or not self._left:
            return f"<{type(value).__qualname__}>"
        self._left -= 1
        self._above.append(id(value))
        try:
            return self._copied(value)
        except Exception:  # its own methods raise
            return f"<{type(value).__qualname__}>"
        finally:
            self._above.pop()

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): self.of(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.of(item) for item in value]
        if isinstance(value, Enum):
            return self.of(value.value)
        dump = own_method(value, "model_dump")
        return str(value) if dump is None else self.of(dump(value, mode="json"))


_AS_JSON_DOES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_encode = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":")).encode


def input_messages(messages: Any) -> list[Any]:
    """Return a request's messages; those of an unknown shape are kept as they are."""
    listed = messages if isinstance(messages, Iterable) and not isinstance(messages, (str, Mapping)) else ()
    return [_message(message) for message in listed]


def output_message(
    role: str,
    *,
    content: str | None,
    reasoning: str | None,
    refusal: str | None,
    tool_calls: Sequence[Any],
    finish_reason: str | None,
) -> dict[str, Any]:
    """Return an answer as a message of parts."""
    parts: list[dict[str, Any]] = []
    if reasoning:
        parts.append({"type": "reasoning", "content": reasoning})
    if content:
        parts.append({"type": "text", "content": content})
    if refusal:
        parts.append({"type": "refusal", "content": refusal})
    parts.extend(_tool_call(call) for call in tool_calls)
    return {"role": role, "parts": parts, "finish_reason": finish_reason}


def _message(message: Any) -> Any:
    plain = type(message) is dict
    if plain and message.keys() == _NOTHING_ELSE:  # the usual case in a long conversation
        role, content = message["role"], message["content"]
        if type(content) is str and content and type(role) is str and role != "tool":
            return {"role": role, "parts": [{"type": "text", "content": content}]}
    read = message.get if plain else partial(field, message)
    role = read("role")
    content = read("content")
    if role is None:
        return message
    if role in ("tool", "function"):  # ``function`` is the older form
        answered = read("tool_call_id") or read("name")
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": answered, "response": tool_text(content)}],
        }
    parts = content_parts(content)
    reasoning = read("reasoning_content") or read("reasoning")
    if reasoning:
        parts.insert(0, {"type": "reasoning", "content": reasoning})
    if refusal := read("refusal"):
        parts.append({"type": "refusal", "content": refusal})
    if tool_calls := read("tool_calls"):
        if not isinstance(tool_calls, Iterable) or isinstance(tool_calls, (str, Mapping)):
            return message
        parts.extend([_tool_call(call) for call in tool_calls])
    if only := read("function_call"):
        parts.append(_tool_call({"function": only}))
    formatted: dict[str, Any] = {"role": role, "parts": parts}
    if name := read("name"):
        formatted["name"] = name
    return formatted


def content_parts(content: Any) -> list[dict[str, Any]]:
    """Return a message's content as parts: text is one part, a list has one part per item."""
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    return [_part(part) for part in content] if isinstance(content, Iterable) else []


def _part(part: Any) -> Any:
    kind = field(part, "type")
    if isinstance(part, str):
        return {"type": "text", "content": part}
    if kind in _TEXT_KINDS:
        return {"type": "text", "content": field(part, "text")}
    if kind == "thinking":  # Anthropic's is a text, Mistral's a list of parts
        return {"type": "reasoning", "content": tool_text(field(part, "thinking"))}
    # Without a type it is vLLM's short form of an image.
    if kind in ("image_url", "input_image", None) and (image := field(part, "image_url")) is not None:
        url = image if isinstance(image, str) else field(image, "url") or ""
        return _image(url) if isinstance(url, str) else part
    if kind == "input_audio" and isinstance(body := field(sound := field(part, "input_audio"), "data"), str):
        return blob(f"audio/{field(sound, 'format')}", body)
    if kind == "image" and (source := field(part, "source")) is not None:
        if isinstance(url := field(source, "url"), str):
            return _image(url)
        if isinstance(body := field(source, "data"), str):
            return blob(str(field(source, "media_type")), body)
    return part


def _image(url: str) -> dict[str, Any]:
    head, comma, body = url.partition(";base64,")
    if comma and head.startswith("data:"):
        return blob(head[5:], body)
    return {"type": "uri", "modality": "image", "uri": url}


def blob(mime_type: str, body: str) -> dict[str, Any]:
    """Return a part that carries its bytes, in base64."""
    return {"type": "blob", "modality": mime_type.partition("/")[0], "mime_type": mime_type, "content": body}


_IMAGES = {"iVBORw0KGgo": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
"""Types of images by their first characters in base64."""


def image_blob(body: str) -> dict[str, Any]:
    """Return a part that carries an image whose type is not known."""
    kind = next((f"image/{name}" for begin, name in _IMAGES.items() if body.startswith(begin)), None)
    return {**blob(kind or "application/octet-stream", body), "modality": "image"}


def tool_text(content: Any) -> Any:
    """Return the text of a tool's result; several text parts become lines, as in the prompt that vLLM makes of them."""
    if isinstance(content, str) or content is None:
        return content or ""
    if not isinstance(content, Iterable):
        return content
    parts = list(content)
    texts = [field(part, "text") or "" for part in parts if field(part, "type") in _TEXT_KINDS]
    if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    return [_part(part) for part in parts]


def _tool_call(call: Any) -> dict[str, Any]:
    function = field(call, "function") or field(call, "custom")
    return {
        "type": "tool_call",
        "id": field(call, "id"),
        "name": field(function, "name"),
        "arguments": parsed_arguments(field(function, "arguments") or field(function, "input")),
    }


def parsed_arguments(arguments: Any) -> Any:
    """Return arguments as an object; text that is not a JSON object stays text, as the model wrote it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, (dict, list)) else arguments
