"""Pydantic AI's agents are known by their own names and their tools recorded, with nothing instrumented."""

import asyncio
import json
from typing import Any

import lightning_instrumentation as lt
import openai
import pytest
from lightning_adapters import pydantic_ai as adapter
from lightning_instrumentation import semconv
from lightning_instrumentation.hooks import registry
from pydantic import BaseModel


class Sum(BaseModel):
    expression: str
    value: int


@pytest.fixture
def agent(recording):
    import pydantic_ai  # takes a second, which collecting need not
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=recording.model.base_url, api_key="k")

    def named(name: str | None, **options: Any) -> Any:
        return pydantic_ai.Agent(OpenAIChatModel("m", provider=provider), name=name, **options)

    return named


def names(recording) -> list[tuple[str, str]]:
    spans = recording.spans("chat m")
    return [(span.attributes[semconv.AGENT_NAME], span.attributes[semconv.AGENT_SOURCE]) for span in spans]


def test_an_agent_is_known_by_its_name(recording, agent):
    agent("planner").run_sync("hello")
    lt.agent("around")(lambda: agent("writer").run_sync("hello"))()
    assert names(recording) == [("planner", "pydantic-ai"), ("writer", "pydantic-ai")]


def test_a_decorated_agent_inside_of_a_tool_is_nearer(recording, agent):
    outer = agent("planner")

    @outer.tool_plain
    def helper() -> str:
        return lt.agent("helper")(lambda: agent(None).run_sync("hello").output)()

    with lt.rollout("t"):
        helper()
    assert names(recording) == [("helper", "decorator")]


# -- tools -----------------------------------------------------------------------------------------------------------


async def run(agent, question: str) -> str:
    return (await agent.run(question)).output


async def streamed(agent, question: str) -> str:
    async with agent.run_stream(question) as result:
        return await result.get_output()


@pytest.mark.parametrize("way", [run, streamed])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tools_span_says_who_called_it_with_what_and_what_it_returned(recording, agent, truth, is_async, way):
    solver = agent("solver", instructions="You are AGENT[solver].")

    def calculator(expression: str) -> Sum:
        return Sum(expression=expression, value=5)

    async def later(expression: str) -> Sum:
        return calculator(expression)

    solver.tool_plain(later if is_async else calculator, name="calculator")
    async with lt.rollout("t", rollout_id="r1"):
        assert (await way(solver, "rollout 1: how much is 2+3")).startswith("answer0 to")
    truth.check_every_call(recording, calls=2)
    span, root = recording.span("execute_tool"), recording.span("rollout")
    assert (span.name, span.parent_span_id, span.error) == ("execute_tool calculator", root.span_id, None)
    assert span.attributes[semconv.OPERATION] == "execute_tool"
    assert span.attributes[semconv.TOOL_NAME] == "calculator"
    assert span.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"expression": "2+3"}
    assert span.attributes[semconv.TOOL_CALL_RESULT] == told(recording) == '{"expression":"2+3","value":5}'
    assert span.attributes[semconv.AGENT_NAME] == "solver"
    assert span.attributes[semconv.AGENT_SOURCE] == "pydantic-ai"


def told(recording) -> str:
    """What the model got from its tool."""
    return recording.model.requests[-1][2]["messages"][-1]["content"]


@pytest.mark.parametrize("is_async", [True, False])
def test_what_a_tool_does_is_below_it(recording, agent, is_async):
    boss, helper = agent("boss"), agent("helper")

    async def ask(question: str) -> str:
        return await run(helper, question)

    def ask_in_a_thread(question: str) -> str:  # where an agent refuses to run
        with openai.OpenAI(base_url=recording.model.base_url, api_key="k") as client:
            asked = client.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])
        return str(asked.choices[0].message.content)

    boss.tool_plain(ask if is_async else ask_in_a_thread)
    with lt.rollout("t"):
        boss.run_sync("hello")
    tool = recording.span("execute_tool")
    chats = recording.spans("chat")
    speaking = [span.attributes[semconv.AGENT_NAME] for span in [*chats, tool]]
    assert speaking == ["boss", "helper" if is_async else "boss", "boss", "boss"]
    assert [span.parent_span_id == tool.span_id for span in chats] == [False, True, False]


async def test_tools_that_run_at_once_stay_apart(recording, agent):
    from pydantic_ai.models.test import TestModel

    boss, together = agent("boss"), asyncio.Barrier(2)

    def asks(name: str) -> Any:
        async def tool() -> str:
            await together.wait()
            return await run(agent(name), "hello")

        return tool

    for name in ("left", "right"):
        boss.tool_plain(asks(name), name=f"ask_{name}")
    async with lt.rollout("t"):
        await boss.run("hello", model=TestModel())
    tools = {span.span_id: span.attributes[semconv.TOOL_NAME] for span in recording.spans("execute_tool")}
    chats = {span.attributes[semconv.AGENT_NAME]: tools[span.parent_span_id] for span in recording.spans("chat")}
    assert chats == {"left": "ask_left", "right": "ask_right"}


@pytest.mark.parametrize(
    ("name", "around", "expected"), [("solver", "a", "solver"), ("agent", "a", "a"), ("agent", "", "agent")]
)
def test_where_only_model_calls_know_of_the_run_a_tool_is_its_agents_too(
    recording, agent, name, around, expected, monkeypatch
):
    # As in 2.31, whose tools would have no name.
    from pydantic_ai._run_context import _CURRENT_RUN_CONTEXT
    from pydantic_ai.tool_manager import ToolManager

    ours = ToolManager.execute_tool_call

    async def outside(manager: Any, validated: Any) -> Any:
        token = _CURRENT_RUN_CONTEXT.set(None)
        try:
            return await ours(manager, validated)
        finally:
            _CURRENT_RUN_CONTEXT.reset(token)

    monkeypatch.setattr(ToolManager, "execute_tool_call", outside)
    it = agent(name)

    @it.tool_plain
    async def calculator(expression: str) -> str:
        async with openai.AsyncOpenAI(base_url=recording.model.base_url, api_key="k") as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": expression}])
        return "5"

    async def answer() -> None:
        await it.run("hello")

    asyncio.run(lt.agent(around)(answer)() if around else answer())
    spans = [recording.span("execute_tool"), *recording.spans("chat")]
    assert [span.attributes.get(semconv.AGENT_NAME) for span in spans] == [expected] * 4


def test_a_tool_that_asks_for_a_retry_has_failed_with_what_the_model_is_told(recording, agent):
    from pydantic_ai import ModelRetry

    solver = agent("solver")

    @solver.tool_plain
    def calculator(expression: str) -> str:
        raise ModelRetry(f"{expression}? numbers, please")

    solver.run_sync("hello")
    span = recording.span("execute_tool")
    assert span.error == span.attributes[semconv.TOOL_CALL_RESULT] == told(recording)
    assert "2+3? numbers, please" in span.error
    assert span.attributes[semconv.ERROR_TYPE] == "tool_error"


def test_so_has_one_whose_arguments_are_none_of_its_own(recording, agent):
    solver = agent("solver")

    @solver.tool_plain
    def square(number: int) -> int:
        raise AssertionError("it is not called")

    solver.run_sync("hello")
    span = recording.span("execute_tool")
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"number": "2+3"}
    assert span.error == span.attributes[semconv.TOOL_CALL_RESULT] == told(recording)
    assert "valid integer" in span.error


def test_what_a_tool_raises_is_its_spans_error_and_the_users(recording, agent):
    solver = agent("solver")

    @solver.tool_plain
    def calculator(expression: str) -> str:
        raise ArithmeticError(f"cannot {expression}")

    with pytest.raises(ArithmeticError, match="cannot"):
        solver.run_sync("hello")
    span = recording.span("execute_tool")
    assert (span.error, span.attributes[semconv.ERROR_TYPE]) == ("cannot 2+3", "ArithmeticError")


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_tool_that_waits_for_approval_has_not_failed(recording, agent, by_itself):
    from pydantic_ai import ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext

    solver = agent("solver", output_type=[str, DeferredToolRequests])

    async def calculator(context: RunContext, expression: str) -> str:
        if by_itself and not context.tool_call_approved:
            raise ApprovalRequired
        return "5"

    solver.tool(calculator, requires_approval=not by_itself)
    asked = solver.run_sync("hello")
    assert [span.error for span in recording.spans("execute_tool")] == [None] * by_itself
    approved = DeferredToolResults(approvals={"call_1": True})
    solver.run_sync(message_history=asked.all_messages(), deferred_tool_results=approved)
    spans = recording.spans("execute_tool")
    assert [span.attributes.get(semconv.TOOL_CALL_RESULT) for span in spans] == [*[None] * by_itself, "5"]


def test_a_name_that_the_model_made_up_is_no_tool(recording, agent):
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: Any, info: Any) -> Any:
        return ModelResponse([ToolCallPart("made_up", {}) if len(messages) == 1 else TextPart("done")])

    assert agent("solver").run_sync("hello", model=FunctionModel(answer)).output == "done"
    assert recording.spans("execute_tool") == []


def test_a_failure_of_ours_is_none_of_the_tools(recording, agent, monkeypatch):
    solver = agent("solver")

    @solver.tool_plain
    def calculator(expression: str) -> str:
        return "5"

    def broken(*given: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(adapter, "_begin", broken)
    assert solver.run_sync("hello").output == "answer0 to 5 "
    assert recording.spans("execute_tool") == []
    monkeypatch.undo()
    monkeypatch.setattr(adapter, "_told", broken)
    assert solver.run_sync("hello").output == "answer0 to 5 "
    assert recording.span("execute_tool").error is None


def test_its_own_instrumentation_tells_the_same_with_ours_and_without(recording, agent):
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from pydantic_ai.models.instrumented import InstrumentationSettings

    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    solver = agent("solver")
    solver.instrument = InstrumentationSettings(tracer_provider=provider)

    @solver.tool_plain
    def calculator(expression: str) -> str:
        return "5"

    def told_by_it() -> list[tuple[str, str | None]]:
        exported.clear()
        solver.run_sync("hello")
        spans = exported.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context}
        return [(span.name, span.parent and names[span.parent.span_id]) for span in spans]

    with_ours = told_by_it()
    assert ("execute_tool calculator", "invoke_agent solver") in with_ours
    assert recording.span("execute_tool").attributes[semconv.AGENT_NAME] == "solver"
    registry.remove_hooks()
    try:
        assert with_ours == told_by_it()
    finally:
        registry.install_hooks()
    assert len(recording.spans("execute_tool")) == 1
