"""Messages of the GenAI conventions as chat messages: nothing is left out in silence."""

import pytest

from lightning_trainer.ingest.dialects.genai import tool_definitions
from lightning_trainer.retokenize.chat import NoWordsError, as_served, chat_answer, chat_messages, chat_tools


def text(words: str) -> dict:
    return {"type": "text", "content": words}


def test_roles_and_texts() -> None:
    messages = [{"role": "system", "parts": [text("be brief")]}, {"role": "user", "parts": [text("a"), text("b")]}]
    assert chat_messages(messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
    ]


def test_tool_calls_keep_their_arguments_as_objects() -> None:
    part = {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 2}}
    assert chat_answer({"parts": [part]}) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    }


def test_answers_of_several_tools_are_several_messages() -> None:
    parts = [{"type": "tool_call_response", "id": f"c{n}", "response": str(n)} for n in (1, 2)]
    assert chat_messages([{"role": "tool", "parts": parts}]) == [
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
    ]


@pytest.mark.parametrize(
    ("result", "written"),
    [
        ({"temp": 20, "at": "Zürich"}, '{"temp":20,"at":"Zürich"}'),
        ([{"name": "a"}, 1], '[{"name":"a"},1]'),
        ([], "[]"),
        (20, "20"),
        (True, "true"),
        (None, "null"),
        ([{"type": "text", "text": "a"}, {"type": "text", "content": "b"}], "a\nb"),
    ],
)
def test_a_tools_result_that_is_data_is_written_as_clients_send_it(result: object, written: str) -> None:
    part = {"type": "tool_call_response", "id": "c", "response": result}
    assert chat_messages([{"role": "tool", "parts": [part]}]) == [
        {"role": "tool", "tool_call_id": "c", "content": written}
    ]


def test_reasoning_is_kept_apart() -> None:
    answer = chat_answer({"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, text("5")]})
    assert answer == {"role": "assistant", "content": "5", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "parts": [{"type": "uri", "modality": "image", "uri": "http://x"}]},
        {"role": "user", "parts": ["words"]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "response": [text("a"), {"type": "image"}]}]},
        {"parts": [text("x")]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "arguments": {}}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "name": "", "arguments": {}}]},
    ],
)
def test_what_is_not_words_is_refused(message: dict) -> None:
    with pytest.raises(NoWordsError):
        chat_messages([message])


@pytest.mark.parametrize("kind", ["previous_response_id", "web_search_call"])
def test_what_only_a_provider_has_is_named_and_refused(kind: str) -> None:
    with pytest.raises(NoWordsError, match=f"an item of the type '{kind}' is not a message"):
        chat_messages([{"role": None, "parts": [], "type": kind}])
    with pytest.raises(NoWordsError, match=f"has a part of the kind '{kind}', which is not text"):
        chat_answer({"role": "assistant", "parts": [text("It rains."), {"type": kind}]})


def test_tools_are_written_as_a_request_has_them() -> None:
    tool = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert chat_tools([tool, {"type": "web_search"}]) == [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}},
        {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}},
        {"name": "add", "description": "adds", "input_schema": {"type": "object"}},
        {"type": "function", "name": "add", "description": "adds", "parametersJsonSchema": {"type": "object"}},
    ],
    ids=["chat completions", "Responses", "Messages", "Gemini"],
)
def test_a_tool_keeps_its_parameters_whatever_a_provider_calls_them(given: dict) -> None:
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert chat_tools(tool_definitions([given])) == [{"type": "function", "function": function}]


def test_what_is_said_beside_a_tools_result_is_a_message_of_its_own() -> None:
    result = {"type": "tool_call_response", "id": "c", "response": "42"}
    said = {"type": "text", "content": "Now in French."}
    assert chat_messages([{"role": "user", "parts": [result, said]}]) == [
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "user", "content": "Now in French."},
    ]
    for role, part in (("assistant", {"type": "tool_call", "id": "c", "name": "f"}), ("tool", said)):
        with pytest.raises(NoWordsError, match=f"the role '{role}' has more than the results of tools"):
            chat_messages([{"role": role, "parts": [part, result]}])


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ('{"a": 2}', {"a": 2}),
        ({"a": 2}, {"a": 2}),
        ("", {}),
        (None, {}),
        ('{"a": ', {}),  # in a conversation's history vLLM takes what is not an object for an empty one
        ("[2]", {}),
    ],
)
def test_a_template_sees_arguments_as_vllm_shows_them(given: object, served: object) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": given}}]}
    called = {"type": "function", "function": {"name": "add", "arguments": served}}
    assert as_served(message) == {"role": "assistant", "content": "", "tool_calls": [called]}
    assert as_served({"role": "assistant", "content": "5", "tool_calls": []}) == {"role": "assistant", "content": "5"}
