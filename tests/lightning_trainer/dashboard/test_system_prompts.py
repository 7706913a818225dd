"""An agent's system prompts: each text is one, in whatever form a call tells it, with when it was in use; and what was
said, in order.
"""

import json
import time
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from benchmarks.dashboard.example_attempts import Writer, letters, message
from lightning_trainer.dashboard.reading.conversation import conversation
from lightning_trainer.dashboard.reading.system_prompts import read_prompts, system_prompt
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span


def call(number: int, text: str | None, *, agent: str = "a", as_message: bool = True) -> Span:
    about = {semconv.AGENT_NAME: agent, semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: f"response-{number}"}
    parts = [{"type": "text", "content": text}]
    if text is not None and as_message:
        about[semconv.INPUT_MESSAGES] = json.dumps([{"role": "system", "parts": parts}, {"role": "user", "parts": []}])
    elif text is not None:
        about[semconv.SYSTEM_INSTRUCTIONS] = json.dumps(parts)
    return Span(f"{number:032x}", f"{number:016x}", None, "chat m", number, number + 1, about)


async def test_each_text_is_one_prompt_with_when_it_was_in_use(tmp_path):
    spans = [
        *(call(number, "be brief") for number in (1, 2, 3)),
        *(call(number, "be kind", as_message=False) for number in (4, 5)),
        *(call(6, "of somebody else", agent="b"), call(7, None)),
    ]
    again = replace(call(5, "be kind"), span_id="f" * 16)
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append([*spans, again])
        prompts = await store.scan(lambda connection: read_prompts(connection, "a"))
    told = [(one.text, len(one.calls), one.first_ns, one.last_ns) for one in prompts.found]
    assert told == [("be kind", 2, 4, 5), ("be brief", 3, 1, 3)]
    assert (prompts.spans_read, prompts.complete, prompts.since_ns) == (8, True, 1)


@pytest.mark.parametrize("given", ["not json", "[", '[{"role": "system"}]', '{"role": "system"}', "[3]"])
def test_what_cannot_be_read_is_no_prompt(given):
    span = call(1, None)
    assert system_prompt(replace(span, attributes={**span.attributes, semconv.INPUT_MESSAGES: given})) is None


def test_what_an_agent_hears_again_is_shown_again():
    asked = [message("user", "You are in a room.")]
    writer = Writer("game", "game", "game", "train", time.time_ns(), letters)
    for number, said in enumerate(("north", "south", "north")):
        answer = [message("assistant", said)]
        writer.call(number, [1, 2], asked, [{**answer[0], "finish_reason": "stop"}], said, [-0.5])
        asked = [*asked, *answer, message("user", "Nothing happens.")]
    entries, _ = conversation(writer.end(0.0))
    shown = [part.text for entry in entries for part in entry.parts]
    assert shown == ["You are in a room.", "north", "Nothing happens.", "south", "Nothing happens.", "north"]


def test_what_only_a_provider_has_is_shown_as_what_it_is():
    span = call(1, None)
    begun = {"type": "previous_response_id", "previous_response_id": "resp_1"}
    given = json.dumps([begun, {"role": "user", "parts": [{"type": "text", "content": "And now?"}]}])
    entries, _ = conversation([replace(span, attributes={**span.attributes, semconv.INPUT_MESSAGES: given})])
    (kept, said) = [part for entry in entries for part in entry.parts]
    assert (kept.kind, json.loads(kept.text), said.text) == (
        "previous_response_id",
        {"previous_response_id": "resp_1"},
        "And now?",
    )


def run_of_a_tool(span_id: str, begin: int, end: int, scope: str, result: str) -> Span:
    about = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: "search", semconv.TOOL_CALL_ID: "call_1"}
    about[semconv.TOOL_CALL_RESULT] = result
    return Span("1" * 32, span_id, None, "execute_tool search", begin, end, about, scope=scope)


def test_a_tools_run_that_its_frameworks_own_instrumentation_reports_too_is_shown_once():
    ours = run_of_a_tool("a" * 16, 10, 20, semconv.CLIENT_SCOPE, "ours")
    theirs = run_of_a_tool("b" * 16, 11, 19, "pydantic-ai", "theirs")
    another = run_of_a_tool("c" * 16, 30, 40, "pydantic-ai", "of a model that repeats its ids")
    entries, _ = conversation([theirs, ours, another])
    assert [part.text for entry in entries for part in entry.parts] == ["ours", "of a model that repeats its ids"]
    assert [entry.span_id for entry in conversation([theirs])[0]] == ["b" * 16]
