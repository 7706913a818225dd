"""A chat's tool calls are put together from its chunks, also where a server leaves their numbers out."""

import json

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import input_messages
from lightning_instrumentation.wire.chat import ChatAnswer
from lightning_instrumentation.wire.completions import CompletionAnswer
from lightning_instrumentation.wire.native.gemini import GeminiAnswer


def part(arguments: str = "", *, id: str | None = None, name: str | None = None, index: int | None = None) -> dict:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"function": function, **({"id": id} if id else {}), **({} if index is None else {"index": index})}


def calls(*chunks: list[dict], whole: bool = False) -> list[tuple]:
    answer = ChatAnswer()
    for tool_calls in chunks:
        answer.add({"choices": [{"index": 0, "message" if whole else "delta": {"tool_calls": tool_calls}}]})
    return [(call.id, call.name, call.arguments) for call in answer.choice(0).tool_calls.values()]


TWO = [("a", "add", '{"x":1}'), ("b", "mul", '{"y":2}')]


@pytest.mark.parametrize(
    "chunks",
    [
        [[part('{"x":1}', id="a", name="add")], [part('{"y":2}', id="b", name="mul")]],
        [[part('{"x":1}', id="a", name="add"), part('{"y":2}', id="b", name="mul")]],
        [[part(id="a", name="add")], [part('{"x":1}')], [part(id="b", name="mul")], [part('{"y":')], [part("2}")]],
        [[part('{"x":', id="a", name="add")], [part("1}", id="a")], [part('{"y":2}', id="b", name="mul")]],
        [[part(name="add")], [part('{"x":1}', id="a")], [part('{"y":2}', id="b", name="mul")]],
    ],
    ids=["whole in each chunk", "both in one", "in pieces", "with the id again", "the id comes later"],
)
def test_a_new_id_begins_a_new_call_where_no_index_says_so(chunks):
    assert calls(*chunks) == TWO


def test_an_index_counts_whatever_the_ids_say():
    chunks = [[part(id="a", name="add", index=0)], [part(id="b", name="mul", index=1)]]
    pieces = [[part('{"x":1}', index=0), part('{"y":2}', index=1)]]
    assert calls(*chunks, *pieces) == TWO
    assert calls([part("{", id="a", name="add", index=0)], [part("}", id="other", index=0)]) == [("other", "add", "{}")]


def test_the_calls_of_a_whole_answer_are_told_apart_without_ids():
    assert calls([part("{}", name="add"), part("{}", name="add", id="b")], whole=True) == [
        (None, "add", "{}"),
        ("b", "add", "{}"),
    ]


def said(*parts: dict, answer: type = ChatAnswer) -> list[dict]:
    read = answer()
    for one in parts:
        read.add(one)
    return json.loads(read.attributes(capture_content=True)[semconv.OUTPUT_MESSAGES])


THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "5"}]
"""As Mistral's reasoning models write content."""


@pytest.mark.parametrize("place", ["message", "delta"])
def test_content_that_is_a_list_is_read_part_by_part(place):
    begin = {"choices": [{"index": 0, place: {"role": "assistant", "content": THOUGHT}}]}
    end = {"choices": [{"index": 0, place: {"content": ["!"]}, "finish_reason": "stop"}]}
    parts = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "5!"}]
    assert said(begin, end) == [{"role": "assistant", "parts": parts, "finish_reason": "stop"}]


def test_content_that_is_a_list_reads_the_same_when_it_is_sent_back():
    parts = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "5"}]
    assert input_messages([{"role": "assistant", "content": THOUGHT}]) == [{"role": "assistant", "parts": parts}]


def test_arguments_that_are_an_object_are_the_calls_arguments():
    call = {"id": "a", "function": {"name": "add", "arguments": {"x": 1}}}
    (message,) = said({"choices": [{"message": {"tool_calls": [call]}}]})
    assert message["parts"] == [{"type": "tool_call", "id": "a", "name": "add", "arguments": {"x": 1}}]


@pytest.mark.parametrize(
    ("answer", "document"),
    [
        (ChatAnswer, {"choices": [{"index": None, "message": {"content": word}} for word in "ab"]}),
        (CompletionAnswer, {"choices": [{"index": None, "text": word} for word in "ab"]}),
        (GeminiAnswer, {"candidates": [{"index": None, "content": {"parts": [{"text": word}]}} for word in "ab"]}),
    ],
)
def test_choices_whose_number_is_null_are_told_apart_by_their_place(answer, document):
    assert [message["parts"][0]["content"] for message in said(document, answer=answer)] == ["a", "b"]


@pytest.mark.parametrize("place", ["message", "delta"])
def test_what_an_answer_says_aloud_is_its_text(place):
    spoken = [
        {"content": None, "audio": {"id": "a", "data": "UklGRg==", "transcript": word}} for word in ("Hello ", "you")
    ]
    parts = spoken if place == "delta" else [{**spoken[0], "audio": {**spoken[0]["audio"], "transcript": "Hello you"}}]
    end = {"choices": [{"index": 0, place: {"audio": {"id": "a", "expires_at": 1}}, "finish_reason": "stop"}]}
    (message,) = said(*({"choices": [{"index": 0, place: part}]} for part in parts), end)
    assert message["parts"] == [{"type": "text", "content": "Hello you"}]


def test_a_call_of_a_function_as_it_was_before_tools_is_a_call_too():
    call = {"type": "tool_call", "id": None, "name": "add", "arguments": {"x": 1}}
    pieces = [{"name": "add", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ":1}"}]
    streamed = said(*({"choices": [{"index": 0, "delta": {"function_call": piece}}]} for piece in pieces))
    whole = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"x":1}'}}
    assert streamed[0]["parts"] == said({"choices": [{"message": whole}]})[0]["parts"] == [call]
    assert input_messages([whole, {"role": "function", "name": "add", "content": "2"}]) == [
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "add", "response": "2"}]},
    ]
