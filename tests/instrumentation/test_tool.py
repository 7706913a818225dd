"""A tool's span, and streams whose body is inside a scope that their consumer is not in."""

import lightning_instrumentation as lightning
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import Agent, Scope, await_inside, current, each_inside, speaker
from lightning_instrumentation.tool import ToolCall

INSIDE = Scope(agent=Agent("inside", "test"))


def test_without_content_neither_arguments_nor_results_are_asked_for(recording, tmp_path):
    lightning.shutdown(0.0)
    lightning.init(recording.receiver.url, spool_dir=tmp_path / "silent", capture_content=False)

    def never():
        raise AssertionError("asked")

    with ToolCall("search", "c1", never) as call:
        call.returned(never, failed=True)
    span = recording.span("execute_tool")
    assert span.error == ""
    assert not {semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT} & set(span.attributes)
    assert "tool" not in lightning.stats().failed


def test_what_cannot_be_described_is_counted_and_the_tool_runs(recording):
    def breaks():
        raise ValueError("no text")

    before = lightning.stats().failed.get("tool", 0)
    with ToolCall("search", None, dict) as call:
        call.returned(breaks)
    assert recording.span("execute_tool").attributes[semconv.TOOL_CALL_ARGUMENTS] == "{}"
    assert lightning.stats().failed["tool"] == before + 1


def test_an_error_passes_and_marks_the_span(recording):
    with pytest.raises(KeyError), ToolCall("search", None, dict):
        raise KeyError("x")
    assert recording.span("execute_tool").error == "'x'"


async def test_a_stream_is_inside_and_its_consumer_is_not():
    seen = []

    async def words():
        try:
            for word in "ab":
                seen.append(speaker())
                yield word
        finally:
            seen.append(speaker())

    consumed = [(word, speaker()) async for word in each_inside(INSIDE, words())]
    assert consumed == [("a", None), ("b", None)]
    assert seen == [INSIDE.agent] * 3


async def test_closing_a_stream_closes_what_is_in_it():
    closed = []

    async def words():
        try:
            yield "a"
        finally:
            closed.append(speaker())

    stream = each_inside(INSIDE, words())
    assert await anext(stream) == "a"
    await stream.aclose()
    assert closed == [INSIDE.agent]


async def test_errors_come_out_of_streams_and_coroutines_as_they_are():
    async def words():
        yield "a"
        raise RuntimeError("broken")

    stream = each_inside(INSIDE, words())
    assert await anext(stream) == "a"
    with pytest.raises(RuntimeError, match="broken"):
        await anext(stream)

    async def fails():
        assert current() is INSIDE
        raise KeyError("x")

    with pytest.raises(KeyError):
        await await_inside(INSIDE, fails())
    assert speaker() is None
