"""A tool's span, and streams whose body is inside a scope that their consumer is not in."""

import asyncio
import inspect
import json
from typing import Any
from unittest.mock import Mock

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.scope import Agent, Scope, await_inside, current, current_agent, each_inside
from lightning_instrumentation.tool import ToolCall

INSIDE = Scope(agent=Agent("inside", "test"))


def test_without_content_neither_arguments_nor_results_are_asked_for(recording, tmp_path):
    lt.shutdown(0.0)
    lt.init(recording.receiver.url, spool_dir=tmp_path / "silent", capture_content=False)

    failed = lt.stats().failed.get("tool", 0)

    def never():
        raise AssertionError("asked")

    with ToolCall("search", "c1", never) as call:
        call.returned(never, failed=True)
    span = recording.span("execute_tool")
    assert span.error == ""
    assert not {semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT} & set(span.attributes)
    assert lt.stats().failed.get("tool", 0) == failed


def test_what_cannot_be_described_is_counted_and_the_tool_runs(recording):
    def breaks():
        raise ValueError("no text")

    before = lt.stats().failed.get("tool", 0)
    with ToolCall("search", None, dict) as call:
        call.returned(breaks)
    assert recording.span("execute_tool").attributes[semconv.TOOL_CALL_ARGUMENTS] == "{}"
    assert lt.stats().failed["tool"] == before + 1


def test_an_error_passes_and_marks_the_span(recording):
    with pytest.raises(KeyError), ToolCall("search", None, dict):
        raise KeyError("x")
    assert recording.span("execute_tool").error == "'x'"


async def test_a_stream_is_inside_and_its_consumer_is_not():
    seen = []

    async def words():
        try:
            for word in "ab":
                seen.append(current_agent())
                yield word
        finally:
            seen.append(current_agent())

    consumed = [(word, current_agent()) async for word in each_inside(INSIDE, words())]
    assert consumed == [("a", None), ("b", None)]
    assert seen == [INSIDE.agent] * 3


async def test_closing_a_stream_closes_what_is_in_it():
    closed = []

    async def words():
        try:
            yield "a"
        finally:
            closed.append(current_agent())

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
    assert current_agent() is None


def told(span):
    """What a tool's span says: its name, the arguments and the result."""
    result = span.attributes.get(semconv.TOOL_CALL_RESULT)
    return span.attributes[semconv.TOOL_NAME], json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]), result


def test_every_kind_of_function_is_recorded_as_a_tool_and_keeps_its_kind(recording):
    @lt.tool
    def look_up(order: str, *, days: int = 3) -> dict:
        """Doc."""
        return {"order": order, "days": days}

    @lt.tool("fetch page")
    async def fetch(url: str, **options) -> str:
        await asyncio.sleep(0)
        return f"page of {url}"

    @lt.tool()
    def count(*upto: int):
        yield from range(*upto)
        return "all"

    @lt.tool
    async def words(text: str):
        for word in text.split():
            yield word

    async def collect():
        return [word async for word in words("a b")]

    assert look_up("4711", days=1) == {"order": "4711", "days": 1}
    assert asyncio.run(fetch("x", timeout=1)) == "page of x"
    assert list(count(2)) == [0, 1]
    assert asyncio.run(collect()) == ["a", "b"]
    assert (look_up.__name__, look_up.__doc__) == ("look_up", "Doc.")
    assert list(inspect.signature(look_up).parameters) == ["order", "days"]
    assert inspect.iscoroutinefunction(fetch)
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(words)
    assert [told(span) for span in recording.spans("execute_tool")] == [
        ("look_up", {"order": "4711", "days": 1}, '{"order":"4711","days":1}'),
        ("fetch page", {"url": "x", "timeout": 1}, "page of x"),
        ("count", {"upto": [2]}, "[0,1]"),
        ("words", {"text": "a b"}, '["a","b"]'),
    ]
    assert recording.spans()[0].name == "execute_tool look_up"


def test_methods_are_recorded_without_what_they_are_called_on(recording):
    class Shop:
        @lt.tool
        def method(self, x):
            return x

        @lt.tool
        @staticmethod
        def above(x):
            return x

        @classmethod
        @lt.tool
        def below(cls, x):
            return x

    assert (Shop().method(1), Shop.above(2), Shop.below(3)) == (1, 2, 3)
    assert [told(span)[1] for span in recording.spans("execute_tool")] == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_calls_inside_of_a_tool_are_its_own_and_the_agent_and_the_state_stay(recording):
    @lt.tool
    def ask():
        return current()

    with lt.agent("support"), lt.state("kitchen"):
        inside = ask()
    agent, tool = recording.spans()
    assert tool.parent_span_id == agent.span_id
    assert tool.attributes[semconv.AGENT_NAME] == "support"
    assert inside.span is not None
    assert f"{inside.span.get_span_context().span_id:016x}" == tool.span_id
    assert inside.state == "kitchen"


def test_an_iterator_is_named_and_left_to_its_owner(recording):
    @lt.tool
    def lines(given):
        return (word for word in given)

    assert list(lines(iter("ab"))) == ["a", "b"]
    assert told(recording.span("execute_tool")) == ("lines", {"given": "<str_ascii_iterator>"}, "<generator>")


def test_a_tool_that_never_ends_is_recorded_in_part(recording):
    @lt.tool
    def numbers():
        number = 0
        while True:
            yield number
            number += 1

    running = numbers()
    for _ in range(1005):
        next(running)
    running.close()
    lt.flush()
    recorded = json.loads(told(recording.span("execute_tool"))[2])
    assert recorded[:2] == [0, 1]
    assert len(recorded) == 1001
    assert recorded[-1] == "... and 5 more"


def test_keys_and_what_is_to_be_redacted_are_taken_out(recording, tmp_path):
    lt.shutdown(0.0)
    lt.init(recording.receiver.url, spool_dir=tmp_path / "edited", redact="emails")

    @lt.tool
    def send(to: str, key: str) -> str:
        return f"sent to {to}"

    send("jane@example.com", "sk-" + "a1B2" * 10)
    span = recording.span("execute_tool")
    assert "jane@" not in str(span.attributes)
    assert "a1B2a1B2" not in str(span.attributes)


def test_an_error_is_the_same_object_and_wrong_arguments_are_the_functions_own_affair(recording):
    problem = ValueError("no such order")
    before = lt.stats().failed.get("tool", 0)

    @lt.tool
    def look_up(order):
        raise problem

    with pytest.raises(ValueError, match="no such order") as caught:
        look_up("1")
    assert caught.value is problem
    with pytest.raises(TypeError, match="unexpected keyword argument 'ordre'"):
        look_up(ordre="1")  # pyright: ignore[reportCallIssue]
    first, second = recording.spans("execute_tool")
    assert first.error == "no such order"
    assert told(second)[1] == {"ordre": "1"}
    assert lt.stats().failed.get("tool", 0) == before


class UnreadableError(Exception):
    def __init__(self, instead: Exception | None) -> None:
        self.instead = instead

    def __str__(self) -> str:
        raise self.instead or self


@pytest.mark.parametrize("instead", [RuntimeError("not yet"), None], ids=["another", "itself"])
def test_an_error_whose_text_raises_is_the_functions_own_and_marks_the_span(recording, monkeypatch, instead):
    monkeypatch.setattr(failures, "_said", set())
    problem = UnreadableError(instead)

    @lt.tool
    def look_up():
        raise problem

    with pytest.raises(UnreadableError) as caught:
        look_up()
    assert caught.value is problem
    assert caught.value.__context__ is None
    assert recording.span("execute_tool").error == "<UnreadableError>"


@pytest.mark.parametrize("name", [3, "", "  ", b"x"])
def test_a_name_that_is_not_a_name_is_refused(name):
    with pytest.raises(TypeError, match=r"write @lt\.tool"):
        lt.tool(name)


def test_what_is_not_a_function_is_refused():
    class FrameworksTool:
        def __call__(self):
            """Tools of frameworks are callable objects."""

    with pytest.raises(TypeError, match=r"needs a function or method, got <.*below a decorator of your framework"):
        lt.tool(FrameworksTool())


def test_nothing_of_an_argument_is_called(recording):
    """A mock has every method; before, it was asked for its `model_dump`, and remembered that."""
    client = Mock()

    @lt.tool
    def buy(client: Any) -> Any:
        return client

    buy(client)
    assert client.mock_calls == []
    assert "<Mock id=" in recording.span("execute_tool").attributes[semconv.TOOL_CALL_ARGUMENTS]


def test_a_function_whose_parameters_cannot_be_read_is_recorded_with_what_it_is_given(recording):
    """Before, decorating it raised. On Python 3.14 each annotation that names something undefined is such a case."""

    class Unreadable:
        @property
        def __signature__(self):
            raise NameError("name 'Order' is not defined")

        def __call__(self): ...

    def look_up(order):
        return order

    look_up.__wrapped__ = Unreadable()
    assert lt.tool(look_up)("4711") == "4711"
    assert json.loads(recording.span("execute_tool").attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"args": ["4711"]}
