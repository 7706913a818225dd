"""What Claude Code and the Claude Agent SDK send beyond a plain message: edits, counts, Anthropic's own tools."""

import re
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv

from lightning_trainer.gateway.protocols.anthropic_request import chat_body

_ASKED: Any = {"model": "sql", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it open?"}]}
_TOOLS: Any = [{"name": "calculator", "description": "computes", "input_schema": {"type": "object"}}]


async def test_a_request_of_claude_code_is_taken_as_it_comes(open_gateway) -> None:
    reminder = {"type": "text", "text": "<system-reminder>Be kind.</system-reminder>"}
    asked = {
        "model": "claude-sonnet-4",
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1c0;"},
            {"type": "text", "text": "You help with code.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [reminder, {"type": "text", "text": "Say hello"}]},
            {"role": "assistant", "content": "Hello."},
            {"role": "system", "content": "It is late."},
            {"role": "user", "content": "And?"},
        ],
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u"},
        "tools": _TOOLS,
    }
    headers = {"anthropic-beta": "claude-code-20250219,context-management-2025-06-27", "x-api-key": "none"}
    async with open_gateway(of_policy={"claims": lambda agent: agent == "coder"}) as gateway:
        answer = await gateway.http.post(
            "/rollouts/run-1/agents/coder/v1/messages?beta=true", json=asked, headers=headers
        )
        assert answer.status_code == 200, answer.text
        events = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert events[:2] == ["message_start", "ping"]
        (sent,) = gateway.engine.requests
        assert sent["messages"][0] == {"role": "system", "content": "You help with code."}
        assert sent["messages"][3] == {"role": "system", "content": "It is late."}
        assert not {"thinking", "thinking_token_budget", "metadata", "context_management"} & set(sent)
        assert (await gateway.record()).attributes[semconv.AGENT_NAME] == "coder"


_TURN: Any = [
    {"role": "user", "content": "Is it open?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "tool_use"}]},
    {"role": "user", "content": [{"type": "tool_result"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    {"role": "user", "content": "Until when?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}]},
]


@pytest.mark.parametrize(
    ("edit", "refused"),
    [
        ({"type": "clear_thinking_20251015", "keep": "all"}, None),
        ({"type": "clear_thinking_20251015", "keep": {"type": "all"}}, None),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}, None),
        ({"type": "clear_thinking_20251015"}, "remove the thinking of all but 1 turns"),
        ({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 1}}, None),
        ({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 0}}, "1 tool uses are more"),
        ({"type": "clear_tool_uses_20250919"}, None),
        ({"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 8}}, None),
        (
            {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 7}},
            "7 prompt tokens reach",
        ),
        ({"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 5}}, "7 prompt tokens reach"),
    ],
)
async def test_edits_that_change_nothing_are_accepted_and_others_refused(counting, edit, refused: str | None) -> None:
    # Before: every context_management was refused, which Claude Code sends with each request
    asked = {**_ASKED, "messages": _TURN, "context_management": {"edits": [edit]}}
    answer = await counting.http.post("/v1/messages", json=asked)
    if refused is None:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 400
        assert refused in answer.json()["error"]["message"]
        assert counting.engine.requests == []


@pytest.fixture
def counting(gateway):
    """A gateway whose engine counts seven tokens in every prompt."""

    async def tokenize(request: Request) -> JSONResponse:
        gateway.tokenized = await request.json()
        if gateway.tokenized["messages"] == []:
            return JSONResponse({"error": {"message": "messages is empty", "type": "BadRequestError"}}, 400)
        if gateway.wants_system_first and any(m["role"] == "system" for m in gateway.tokenized["messages"][1:]):
            return JSONResponse({"error": {"message": "a system message comes first", "type": "BadRequestError"}}, 400)
        return JSONResponse({"count": 7, "max_model_len": 64, "tokens": [1] * 7})

    gateway.wants_system_first = False
    gateway.engine.app.post("/tokenize")(tokenize)
    return gateway


async def test_tokens_are_counted_by_the_engine(counting) -> None:
    # Before: 404 for /v1/messages/count_tokens
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=counting.url, api_key="none", max_retries=0) as client:
        asked = {name: _ASKED[name] for name in ("model", "messages")}
        counted = await client.messages.count_tokens(
            **asked, system="Be brief.", tools=_TOOLS, thinking={"type": "disabled"}
        )
        assert counted.input_tokens == 7
        function = {"name": "calculator", "description": "computes", "parameters": {"type": "object"}}
        assert counting.tokenized == {
            "model": "sql",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it open?"}],
            "tools": [{"type": "function", "function": function}],
            "chat_template_kwargs": {"reasoning_effort": "none", "enable_thinking": False},
        }
        with pytest.raises(anthropic.NotFoundError, match="known models: sql"):
            await client.messages.count_tokens(model="claude", messages=_ASKED["messages"])
        with pytest.raises(anthropic.BadRequestError, match="messages is empty"):
            await client.messages.count_tokens(model="sql", messages=[])
    assert counting.sink.spans == []


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("bash_20250124", "bash", {"command", "restart"}),
        ("text_editor_20250124", "str_replace_editor", {"command", "path", "new_str", "insert_line"}),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"command", "path", "insert_text", "view_range"}),
        ("memory_20250818", "memory", {"command", "path", "old_path", "new_path", "insert_text"}),
    ],
)
def test_tools_that_the_caller_runs_get_the_schema_that_is_published(kind: str, name: str, fields: set[str]) -> None:
    # Before: tools without an input_schema were refused, also those that the caller runs
    (tool,) = chat_body({**_ASKED, "tools": [{"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}]})[
        "tools"
    ]
    assert (tool["type"], tool["function"]["name"]) == ("function", name)
    assert fields <= set(tool["function"]["parameters"]["properties"])
    assert tool["function"]["description"]
    commands = tool["function"]["parameters"]["properties"]["command"].get("enum", [])
    assert ("undo_edit" in commands) is (kind == "text_editor_20250124")


@pytest.mark.parametrize("wrong", ["max_completion_tokens", "input_tokens"])
@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_above_the_context_means_what_is_left_of_it(gateway, wrong: str, stream: bool) -> None:
    gateway.engine.refuse = lambda body: wrong if "max_completion_tokens" in body else None
    answer = await gateway.http.post("/v1/messages", json={**_ASKED, "max_tokens": 32000, "stream": stream})
    assert answer.status_code == 200, answer.text
    assert [request.get("max_completion_tokens") for request in gateway.engine.requests] == [32000, None]
    assert (await gateway.record()).attributes[semconv.OUTPUT_TOKENS] == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_the_context_ended_says_so(gateway, stream: bool) -> None:
    # Before: max_tokens, of which 32000 would have been left
    async def reason(max_tokens: int, place: str = "") -> str:
        answer = await gateway.http.post(
            f"{place}/v1/messages", json={**_ASKED, "max_tokens": max_tokens, "stream": stream}
        )
        assert answer.status_code == 200, answer.text
        return re.findall(r'"stop_reason":"(\w+)"', answer.text)[-1]

    gateway.engine.finish_reason = "length"
    assert await reason(5) == "max_tokens"
    assert await reason(32000, "/rollouts/r/with/max_tokens=5") == "max_tokens"
    gateway.engine.refuse = lambda body: "input_tokens" if "max_completion_tokens" in body else None
    assert await reason(32000) == "model_context_window_exceeded"
    gateway.engine.finish_reason = "stop"
    assert await reason(32000) == "end_turn"


async def test_a_bound_in_the_rollouts_url_means_what_is_left_too(gateway) -> None:
    # Before: 400, because the bound of the URL goes by the name of completions
    gateway.engine.refuse = lambda body: "max_tokens" if "max_tokens" in body else None
    answer = await gateway.http.post("/rollouts/r/with/max_tokens=32000/v1/messages", json=_ASKED)
    assert answer.status_code == 200, answer.text
    assert [request.get("max_tokens") for request in gateway.engine.requests] == [32000, None]
    answer = await gateway.http.post("/rollouts/r/with/max_tokens=0/v1/messages", json=_ASKED)
    assert answer.status_code == 400


async def test_a_prompt_that_is_too_long_stays_refused(gateway) -> None:
    gateway.engine.refuse = lambda body: "input_tokens"
    answer = await gateway.http.post("/v1/messages", json=_ASKED)
    assert (answer.status_code, len(gateway.engine.requests)) == (400, 2)
    assert answer.json()["error"]["message"] == "input_tokens is not taken by this model"


async def test_a_late_system_message_is_the_users_where_the_template_wants_it_first(gateway) -> None:
    def refuse(body: dict[str, Any]) -> str | None:
        return "a system message" if any(m["role"] == "system" for m in body["messages"][1:]) else None

    gateway.engine.refuse = refuse
    late = [*_ASKED["messages"], {"role": "system", "content": "It is late."}]
    answer = await gateway.http.post("/v1/messages", json={**_ASKED, "system": "Be brief.", "messages": late})
    assert answer.status_code == 200, answer.text
    _, sent = gateway.engine.requests
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "user"]
    assert sent["messages"][-1]["content"] == "It is late."


async def test_a_late_system_message_is_counted_as_it_is_sent(counting) -> None:
    # Before: 400 of a prompt that the call itself accepts, and edits of its context were accepted and not made
    counting.wants_system_first = True
    late = [*_ASKED["messages"], {"role": "system", "content": "It is late."}]
    asked = {**_ASKED, "system": "Be brief.", "messages": late}
    answer = await counting.http.post("/v1/messages/count_tokens", json=asked)
    assert (answer.status_code, answer.json()) == (200, {"input_tokens": 7})
    assert [message["role"] for message in counting.tokenized["messages"]] == ["system", "user", "user"]
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 5}}
    answer = await counting.http.post("/v1/messages", json={**asked, "context_management": {"edits": [edit]}})
    assert "7 prompt tokens reach" in answer.json()["error"]["message"]


async def test_the_beginning_of_an_answer_is_counted_as_one(counting) -> None:
    begun = [*_ASKED["messages"], {"role": "assistant", "content": "It is"}]
    await counting.http.post("/v1/messages/count_tokens", json={**_ASKED, "messages": begun})
    assert (counting.tokenized["continue_final_message"], counting.tokenized["add_generation_prompt"]) == (True, False)
