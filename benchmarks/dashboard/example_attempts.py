"""Attempts of the example run as spans: ordinary ones, one with a picture, and one whose every text is hostile."""

import base64
import hashlib
import math
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import as_json
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

from lightning_trainer.types import Span, SpanEvent, SpanStatus

POLICY = "support"
SECOND_NS = 10**9
_ITEMS = (
    "the blue kettle",
    "two desk lamps",
    "a walnut shelf",
    "the garden hose",
    "six wine glasses",
    "a wool blanket",
)
_STATES = ("is on its way and arrives on Friday", "was delivered yesterday", "waits for customs", "left our warehouse")
Encode = Callable[[str], Sequence[int]]


def letters(text: str) -> list[int]:
    """Encode a text without a tokenizer: an id for each word."""
    return [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=2).digest(), "little") for word in text.split()]


@dataclass
class Writer:
    """Writes the spans of one attempt, in the order in which they happened."""

    attempt: str
    task: str
    group: str
    mode: str
    starts_ns: int
    encode: Encode
    version: int = 0
    spans: list[Span] = field(default_factory=list)
    at_ns: int = 0

    def __post_init__(self) -> None:
        self.at_ns = self.starts_ns

    def span(self, name: str, title: str, parent: str | None, took_s: float, **attributes: Any) -> Span:
        begins = self.at_ns
        about = {semconv.ROLLOUT_ID: f"r-{self.attempt}", semconv.ATTEMPT_ID: self.attempt}
        one = Span(
            trace_id=hashlib.blake2b(self.attempt.encode(), digest_size=16).hexdigest(),
            span_id=self.id(name),
            parent_span_id=None if parent is None else self.id(parent),
            name=title,
            start_ns=begins,
            end_ns=begins + int(took_s * SECOND_NS),
            attributes={**about, **attributes},
            scope=semconv.CLIENT_SCOPE,
        )
        self.spans.append(one)
        return one

    def id(self, name: str) -> str:
        return hashlib.blake2b(f"{self.attempt} {name}".encode(), digest_size=8).hexdigest()

    def call(
        self, number: int, prompt: Sequence[int], asked: list, said: list, answer: str, logprobs: Sequence[float]
    ) -> tuple[int, ...]:
        """Add a call as client and gateway record it; return the ids of its prompt and answer."""
        ids = list(self.encode(answer))
        common = {
            semconv.AGENT_NAME: "support",
            semconv.OPERATION: semconv.CHAT,
            semconv.RESPONSE_ID: f"chatcmpl-{self.attempt}-{number}",
            semconv.FINISH_REASONS: ("stop",),
            semconv.REQUEST_MODEL: POLICY,
            semconv.INPUT_TOKENS: len(prompt),
            semconv.OUTPUT_TOKENS: len(ids),
            semconv.INPUT_MESSAGES: as_json(asked),
            semconv.OUTPUT_MESSAGES: as_json(said),
            semconv.STREAM_COMPLETE: True,
        }
        took = 0.4 + 0.02 * len(ids)
        self.span(f"client-{number}", "chat support", "agent", took, **common)
        record = self.span(
            f"gateway-{number}",
            "gateway chat",
            f"client-{number}",
            took - 0.02,
            **common,
            **{
                semconv.POLICY: POLICY,
                semconv.POLICY_VERSION: self.version,
                semconv.CHOICES: 1,
                semconv.PROMPT_TOKEN_IDS: pack_token_ids(tuple(prompt)),
                semconv.response_token_ids(0): pack_token_ids(tuple(ids)),
                semconv.response_logprobs(0): pack_logprobs(list(logprobs)[: len(ids)]),
            },
        )
        self.spans[-1] = replace(record, scope=semconv.GATEWAY_SCOPE, status=SpanStatus.OK)
        self.at_ns += int((took + 0.05) * SECOND_NS)
        return (*prompt, *ids)

    def end(self, reward: float | None, why: str | None = None, error: str | None = None) -> list[Span]:
        about = {
            semconv.ROLLOUT_ROOT: True,
            semconv.TASK_ID: self.task,
            semconv.GROUP_ID: self.group,
            semconv.ROLLOUT_MODE: self.mode,
        }
        ended, self.at_ns = self.at_ns, self.starts_ns
        root = self.span("root", f"rollout {self.task}", None, (ended - self.starts_ns) / SECOND_NS + 0.1, **about)
        if error is not None:
            root = replace(root, status=SpanStatus.ERROR, status_message=error)
        given = {semconv.EVALUATION_NAME: "reward"}
        given |= {} if reward is None else {semconv.EVALUATION_SCORE: reward}
        given |= {} if why is None else {semconv.EVALUATION_EXPLANATION: why}
        if reward is not None:
            root = replace(root, events=(SpanEvent(semconv.EVALUATION_EVENT, root.end_ns - 1, given),))
        self.spans[-1] = root
        return self.spans


def attempt(
    name: str,
    order: int,
    *,
    group: str,
    version: int,
    skill: float,
    at_ns: int,
    draw: random.Random,
    encode: Encode,
    mode: str = "train",
    score: bool = True,
    task: str | None = None,
) -> list[Span]:
    """Return an attempt at one order: the agent asks a tool where the order is, and answers."""
    item, state = _ITEMS[order % len(_ITEMS)], _STATES[order % len(_STATES)]
    writer = Writer(name, task or f"order-{4700 + order}", group, mode, at_ns, encode, version)
    question = f"Where is order {4700 + order}? I bought {item}."
    system = "You are the support agent of a small shop. Look an order up before you answer, and name its number."
    asked = [message("system", system), message("user", question)]
    right = draw.random() < skill
    call = f'<tool_call>{{"name": "look_up", "arguments": {{"order": "{4700 + order}"}}}}</tool_call>'
    found = f'{{"order": {4700 + order}, "item": "{item}", "state": "{state}"}}'
    answer = f"Order {4700 + order}, {item}, {state}." if right else f"Your parcel {state}. Please ask again tomorrow."
    told = {
        "role": "assistant",
        "parts": [
            {"type": "tool_call", "id": f"call-{name}", "name": "look_up", "arguments": {"order": str(4700 + order)}}
        ],
    }
    writer.span("agent", "invoke_agent support", "root", 0.2, **attributes_of(semconv.INVOKE_AGENT))
    prompt = list(encode(f"system {system} user {question} assistant"))
    so_far = writer.call(0, prompt, asked, [{**told, "finish_reason": "tool_calls"}], call, _surprises(draw, 60))
    writer.span(
        "tool",
        "execute_tool look_up",
        "agent",
        0.12,
        **{
            **attributes_of(semconv.EXECUTE_TOOL),
            semconv.TOOL_NAME: "look_up",
            semconv.TOOL_CALL_ID: f"call-{name}",
            semconv.TOOL_CALL_ARGUMENTS: as_json({"order": str(4700 + order)}),
            semconv.TOOL_CALL_RESULT: found,
        },
    )
    writer.at_ns += int(0.14 * SECOND_NS)
    response = {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"call-{name}", "response": found}]}
    said = [{**message("assistant", answer), "finish_reason": "stop"}]
    prompt = [*so_far, *encode(f"tool {found} assistant")]
    writer.call(1, prompt, [*asked, told, response], said, answer, _surprises(draw, 60))
    index = next(i for i, span in enumerate(writer.spans) if span.span_id == writer.id("agent"))
    writer.spans[index] = replace(writer.spans[index], end_ns=writer.at_ns)
    if not score:
        return writer.end(None)
    why = "names the order and says where it is" if right else "does not name the order"
    return writer.end(1.0 if right else 0.0, why)


def hostile(at_ns: int) -> list[Span]:
    """Return an attempt whose every text tries to be something else: markup, script, control characters."""
    said = (
        "<script>document.title='owned'</script><img src=x onerror=alert(1)> "
        "\u202etxt.exe \u2066ok\u2069 \x00\x07 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ]]> --> {{ 7*7 }}"
    )
    writer = Writer("a<b>\"'&", "task <i>", "group</pre>", "train", at_ns, letters)
    writer.span("agent", "invoke_agent <script>alert(2)</script>", "root", 1.0, **attributes_of(semconv.INVOKE_AGENT))
    long = "x" * 1_000_000
    writer.call(0, letters("one two"), [message("user", said)], [message("assistant", said)], "a b c", [-0.5] * 3)
    writer.call(1, letters("one two three"), [message("user", long)], [message("assistant", "\x00")], "d e", [-0.5] * 2)
    return writer.end(0.5, f"because {said}")


def attributes_of(operation: str) -> dict[str, Any]:
    return {semconv.OPERATION: operation, semconv.AGENT_NAME: "support"}


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _surprises(draw: random.Random, count: int) -> list[float]:
    return [-min(6.0, draw.expovariate(2.2)) for _ in range(count)]


def photo(at_ns: int, version: int, encode: Encode) -> list[Span]:
    """Return an attempt whose question has a picture, a link to one, and an SVG with a script instead of one."""
    writer = Writer("photo", "order-4755", "photo", "train", at_ns, encode, version)
    writer.span("agent", "invoke_agent support", "root", 1.3, **attributes_of(semconv.INVOKE_AGENT))
    shown = [
        {"type": "text", "content": "The box of order 4755 came like this. Will you send another?"},
        {
            "type": "blob",
            "modality": "image",
            "mime_type": "image/png",
            "content": base64.b64encode(picture()).decode(),
        },
        {"type": "uri", "modality": "image", "uri": "https://shop.example/claims/4755/lid.jpg"},
        {"type": "blob", "modality": "image", "mime_type": "image/svg+xml", "content": base64.b64encode(_SVG).decode()},
    ]
    answer = "I am sorry: that corner is torn. Order 4755 is sent again today, free of charge."
    prompt = list(encode("user The box of order 4755 came like this. Will you send another? assistant"))
    said = [{**message("assistant", answer), "finish_reason": "stop"}]
    writer.call(0, prompt, [{"role": "user", "parts": shown}], said, answer, [-0.4] * 60)
    return writer.end(1.0, "offers a new one")


_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"/>'


def picture(width: int = 240, height: int = 150) -> bytes:
    """Return a PNG of a box whose corner is torn."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            inside = 40 < x < 200 and 35 < y < 130
            torn = inside and (200 - x) + (y - 35) < 34 + 5 * math.sin(x / 2.5)
            tape = inside and (abs(y - 82) < 5 or abs(x - 120) < 4)
            color = (206, 214, 222) if not inside else (74, 58, 44) if torn else (222, 200, 160) if tape else None
            rows += bytes(color or (176 - y // 6, 134 - y // 8, 88 - y // 10))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
