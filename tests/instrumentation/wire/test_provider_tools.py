"""What only the provider has or does stays visible: no reader takes the rest for all of the prompt or the answer."""

import json
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.wire.api import Api
from lightning_instrumentation.wire.messages_api import Messages
from lightning_instrumentation.wire.native.bedrock import Converse
from lightning_instrumentation.wire.native.gemini import Gemini
from lightning_instrumentation.wire.native.ollama import OllamaGenerate
from lightning_instrumentation.wire.responses import Responses

TEXT = {"type": "text", "content": "It rains."}
USER = {"role": "user", "parts": [{"type": "text", "content": "And now?"}]}
PNG = "iVBORw0KGgoAAAA="


def parts(api: Api, *answer: dict) -> list[Any]:
    read = api.answer()
    for part in answer:
        read.add(part)
    (message,) = json.loads(read.attributes(capture_content=True)[semconv.OUTPUT_MESSAGES])
    return message["parts"]


def response(*items: dict) -> dict:
    said = {"type": "message", "content": [{"type": "output_text", "text": "It rains."}]}
    return {"id": "r", "status": "completed", "output": [*items, said]}


SEARCH = {"id": "ws", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "rain"}}
MCP = {"id": "m", "type": "mcp_call", "name": "look", "server_label": "s", "arguments": "{}", "output": "clouds"}
SHELL = {"id": "sh", "type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
DRAWN = {"id": "i", "type": "image_generation_call", "status": "completed", "result": PNG}
BLOB = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PNG}


@pytest.mark.parametrize(
    ("item", "part"),
    [(SEARCH, SEARCH), (MCP, MCP), (SHELL, SHELL), (DRAWN, BLOB)],
    ids=["a search", "MCP at OpenAI", "a shell of the program's", "an image"],
)
def test_an_item_of_a_response_that_is_no_function_call_is_a_part_of_the_answer(item, part):
    whole = parts(Responses(), response(item))
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    streamed = parts(Responses(), done, {"type": "response.completed", "response": response(item)})
    cut = parts(Responses(), done, {"type": "response.output_text.delta", "delta": "It rains."})
    assert whole == streamed == cut == [TEXT, part]


FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]}
USED = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rain"}}


def test_what_a_tool_of_anthropics_found_is_a_part_of_the_answer():
    hidden = {"type": "redacted_thinking", "data": "x"}
    content = [hidden, USED, FOUND, {"type": "text", "text": "It rains."}]
    whole = parts(Messages(), {"id": "m", "type": "message", "stop_reason": "end_turn", "content": content})
    events = [{"type": "content_block_start", "index": at, "content_block": block} for at, block in enumerate(content)]
    call = {"type": "tool_call", "id": "s1", "name": "web_search", "arguments": {"query": "rain"}}
    assert whole == parts(Messages(), *events) == [TEXT, call, FOUND]


def test_a_summary_that_anthropic_streams_is_a_part_of_the_answer():
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}}
    delta = {"type": "compaction_delta", "content": "So far: rain."}
    said = parts(Messages(), start, {"type": "content_block_delta", "index": 0, "delta": delta})
    assert said == [{"type": "compaction", "content": "So far: rain."}]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_of_anthropic_that_pauses_is_no_whole_one(streamed):
    answer = {"id": "m", "type": "message", "stop_reason": "pause_turn", "content": [USED]}
    start = {"type": "content_block_start", "index": 0, "content_block": USED}
    events = [start, {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}]
    call, pause = parts(Messages(), *(events if streamed else [answer]))
    assert (call["name"], pause) == ("web_search", {"type": "pause_turn"})


def test_code_that_gemini_ran_is_a_part_of_the_answer():
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}}
    drawn = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    said = [code, {"text": "It rains."}, {"thoughtSignature": "x"}, drawn]
    candidate = {"content": {"role": "model", "parts": said}, "finishReason": "STOP"}
    assert parts(Gemini(), {"candidates": [candidate]}) == [TEXT, code, BLOB]


def test_words_with_their_sources_are_words_of_bedrocks_answer():
    cited = {"citationsContent": {"content": [{"text": "It rains."}], "citations": [{"title": "t"}]}}
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    assert parts(Converse(), {"output": {"message": {"content": [cited, image]}}}) == [TEXT, BLOB]
    (message,) = Converse().input_messages({"messages": [{"role": "assistant", "content": [cited]}]})
    assert message["parts"] == [TEXT]


@pytest.mark.parametrize(
    ("api", "asked", "mark"),
    [
        (
            Responses(),
            {"previous_response_id": "resp_1", "input": "And now?"},
            {"type": "previous_response_id", "previous_response_id": "resp_1"},
        ),
        (
            Responses(),
            {"conversation": {"id": "conv_1"}, "input": "And now?"},
            {"type": "conversation", "conversation": {"id": "conv_1"}},
        ),
        (Responses(), {"prompt": {"id": "p"}, "input": "And now?"}, {"type": "prompt", "prompt": {"id": "p"}}),
        (
            Messages(),
            {
                "thread": {"type": "continue", "previous_message_id": "m"},
                "messages": [{"role": "user", "content": "And now?"}],
            },
            {"type": "thread", "thread": {"type": "continue", "previous_message_id": "m"}},
        ),
        (
            Gemini(),
            {"cachedContent": "cachedContents/1", "contents": [{"role": "user", "parts": [{"text": "And now?"}]}]},
            {"type": "cachedContent", "cachedContent": "cachedContents/1"},
        ),
        (OllamaGenerate(), {"context": [1, 2], "prompt": "And now?"}, {"type": "context"}),
    ],
    ids=["previous_response_id", "conversation", "prompt", "thread", "cachedContent", "context"],
)
def test_a_prompt_says_that_its_beginning_is_at_the_provider(api: Api, asked, mark):
    assert api.input_messages(asked) == [mark, USER]


def test_a_thread_that_begins_has_no_beginning_elsewhere():
    asked = {"thread": {"type": "create"}, "messages": [{"role": "user", "content": "And now?"}]}
    assert Messages().input_messages(asked) == [USER]
