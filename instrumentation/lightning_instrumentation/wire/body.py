"""Reads the answer of a call as its bytes pass, and returns what the caller gets.

If nothing was requested additionally, the bytes are passed on unchanged and at once. Otherwise, a stream is passed on
event by event without the additions, and a whole answer when it is complete. If this code fails, the bytes are passed
on unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.wire import sse
from lightning_instrumentation.wire.call import ModelCall
from lightning_instrumentation.wire.decoding import decoder, read_json
from lightning_instrumentation.wire.fast_extract import fast_extract

_DONE = b"[DONE]"


def rewritten(call: ModelCall, content: bytes, content_type: str) -> tuple[bytes | None, Any]:
    """Read an answer that is complete and decoded.

    Returns:
        The answer without what we asked for, None if it is unchanged; and the result of ``json.loads`` on it, None if
        unknown.
    """
    if _splitter(content_type) is not None:
        body = Body(call, content_type, None)
        handed_on = body.feed(content) + body.finish()
        return handed_on if body.rewrites and handed_on != content else None, None
    if not content or _is_too_long(call, len(content)):
        return None, None
    return guarded("chat-response", _read, call, content) or (None, None)


def _read(call: ModelCall, data: bytes) -> tuple[bytes | None, Any]:
    """Read an answer that is a single document; see ``rewritten``."""
    asked = call.asked
    if asked.token_ids and asked.logprobs and (found := fast_extract(data)) is not None:
        _add(call, found.part)
        return found.text, found.document
    part = read_json(data)
    if isinstance(part, list) and not asked:  # a Gemini stream that is a JSON array instead of events
        for one in part:
            if isinstance(one, dict):
                _add(call, one)
        call.streamed = True
    if not isinstance(part, dict):
        return None, part
    _add(call, part)
    return _dumped(part, data) if asked and call.api.hide(part, asked) else None, part


class Body:
    """An answer that arrives in pieces."""

    def __init__(self, call: ModelCall, content_type: str, encoding: str | None) -> None:
        """``encoding``: the ``Content-Encoding`` of the bytes that will pass; None if they are decoded."""
        self._call = call
        self._events = _splitter(content_type)
        self._pieces: list[bytes] = []
        self._size = 0
        self._first = True
        self._done = False
        """Whether the stream's last event has passed, so that only the connection's end may still come."""
        self._decode = decoder(encoding)
        self._reading = self._decode is not None
        self.rewrites = bool(call.asked) and self._decode is bytes and not call.api.lines
        call.streamed = self._events is not None
        if call.asked and not self.rewrites:
            failures.note(
                "not-hidden:content-encoding",
                f"an answer came with Content-Encoding {encoding!r} although none was asked for: it is handed on with "
                "the token ids that were asked for on top",
            )
        if self._decode is None:
            failures.note(
                f"not-captured:content-encoding-{encoding}",
                f"an answer came with Content-Encoding {encoding!r}, which cannot be read here; its call is recorded "
                "without it",
            )

    def feed(self, data: bytes) -> bytes:
        """Process new bytes and return what to pass on now (nothing while an event is incomplete)."""
        if not self._reading:
            return data
        if not self.rewrites:
            guarded("stream-chunk", self._watch, data)
            return data
        self._grow(len(data))
        if not self._reading:
            return self._held() + data
        if self._events is None:
            self._pieces.append(data)
            return b""
        return b"".join([self._pass_on(event) for event in self._events.feed(data)])

    def finish(self) -> bytes:
        """Process the end of the answer and return what is left to pass on."""
        held = self._held()
        if not self._reading or not held:
            return held if self.rewrites else b""
        if self._events is None:
            cleaned, _ = guarded("chat-response", _read, self._call, held) or (None, None)
            return (cleaned or held) if self.rewrites else b""
        if self.rewrites:
            return self._pass_on(held)
        guarded("stream-chunk", self._take_json, self._events.data_of(held))
        return b""

    def ended(self) -> None:
        """End the call, because the caller has the whole answer, or stops reading."""
        self._call.ended()

    def failed(self, error: BaseException) -> None:
        """End the call with an error, except that a reader that was closed early has abandoned the answer, and one that
        fails after the last event has the whole answer."""
        if isinstance(error, GeneratorExit):
            self._call.abandon()
        elif self._done:
            self._call.ended()
        else:
            self._call.failed(error)

    def abandon(self) -> None:
        """End the call, because the caller has closed or dropped the answer, whether or not it was read to its end."""
        self._call.abandon()

    def _watch(self, data: bytes) -> None:
        assert self._decode is not None
        plain = self._decode(data)
        self._grow(len(plain))
        if not self._reading:
            self._held()
        elif self._events is None:
            self._pieces.append(plain)
        else:
            for event in self._events.feed(plain):
                guarded("stream-chunk", self._take_json, self._events.data_of(event))

    def _grow(self, size: int) -> None:
        self._size += size
        if _is_too_long(self._call, self._size):
            self._reading = False

    def _held(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces) + (self._events.finish() if self._events is not None else b"")

    def _pass_on(self, event: bytes) -> bytes:
        """Return an event as the caller sees it, empty if it was sent only for us."""
        data = sse.data_of(event)
        if not data or self._is_done(data):
            return event
        cleaned = guarded("stream-chunk", self._cleaned_event, event, data)
        return event if cleaned is None else cleaned

    def _cleaned_event(self, event: bytes, data: bytes) -> bytes | None:
        cleaned = self._take_json(data)
        return sse.with_data(event, cleaned) if cleaned else cleaned

    def _take_json(self, data: bytes) -> bytes | None:
        """Read an event's document; return it cleaned, empty if it was only for us, None if it is unchanged."""
        if not data or self._is_done(data):
            return None
        part: Any = read_json(data)
        if not isinstance(part, dict):
            return None
        first, self._first = self._first, False
        call = self._call
        _add(call, part)
        if not self.rewrites or not call.api.hide(part, call.asked):
            return None
        if not first and call.streamed and call.api.is_ours_alone(part, call.asked):
            return b""
        return _dumped(part, data)

    def _is_done(self, data: bytes) -> bool:
        done = data.startswith(_DONE)
        if done and not self._done:
            self._done = True
            # OpenAI's client closes the answer here, and the end of a closed answer waits until the next span begins.
            self._call.ended()
        return done


_SPLITTERS = (
    ("text/event-stream", sse.EventSplitter),
    ("application/x-ndjson", sse.LineSplitter),
    ("application/jsonl", sse.LineSplitter),
    ("application/vnd.amazon.eventstream", sse.AmazonSplitter),
)


def _splitter(content_type: str) -> sse.EventSplitter | None:
    """Return the splitter for a stream of this type, None for a whole answer."""
    if not content_type or content_type.startswith("application/json"):  # the usual case
        return None
    kind = content_type.lower()
    return next((splitter() for name, splitter in _SPLITTERS if kind.startswith(name)), None)


def _is_too_long(call: ModelCall, size: int) -> bool:
    if size <= call.limit_bytes:
        return False
    failures.note(
        "response-over-limit",
        f"an answer is longer than {call.limit_bytes} bytes and the rest of it is not read; the limit is "
        "max_body_bytes of lt.init or LIGHTNING_MAX_BODY_BYTES",
    )
    return True


def _add(call: ModelCall, part: dict[str, Any]) -> None:
    try:
        call.answer.add(part)
    except Exception as error:
        # An answer that could not be read must still be cleaned.
        failures.note("chat-response", "lightning could not read an answer; the agent goes on", error=error)


def _dumped(part: Any, like: bytes) -> bytes:
    """Encode JSON in the original's style: spaces after separators or none, characters escaped or not."""
    spaced = b'": ' in like[:200]
    escaped = b"\\u" in like
    return json.dumps(part, ensure_ascii=escaped, separators=(", ", ": ") if spaced else (",", ":")).encode()
