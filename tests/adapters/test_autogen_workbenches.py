"""AutoGen's workbenches: whoever runs a tool, each call of it is recorded once."""

import asyncio
import json
from collections.abc import AsyncGenerator
from types import ModuleType
from typing import Any

import lightning_instrumentation as lt
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.tools import (
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolOverride,
    ToolResult,
    Workbench,
)
from autogen_core.tools._workbench import StreamWorkbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_adapters.autogen import _watch_workbenches_of, watch_workbenches
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import current

SCHEMA = {
    "name": "calculator",
    "description": "Compute.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}
ASKED = {"expression": "2+3"}


def assistant(model: Any, workbench: Any, **options: Any) -> AssistantAgent:
    info: Any = {
        **{"vision": False, "function_calling": True, "json_output": False},
        **{"family": "unknown", "structured_output": False},
    }
    client = OpenAIChatCompletionClient(model="m", base_url=model.base_url, api_key="x", max_retries=0, model_info=info)
    return AssistantAgent("solver", client, workbench=workbench, **options)


class OfNoTools(Workbench):
    """A workbench that runs its tools itself, as an ``McpWorkbench`` does."""

    component_config_schema = None  # type: ignore[assignment]
    fails = False

    async def list_tools(self) -> Any:
        return [SCHEMA]

    async def call_tool(
        self, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> ToolResult:
        text = "the server is away" if self.fails else str(eval((arguments or {}).get("expression", "0"), {}))
        return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=self.fails)

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def reset(self) -> None: ...
    async def save_state(self) -> Any: ...
    async def load_state(self, state: Any) -> None: ...


class Streaming(OfNoTools):
    async def call_tool_stream(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
        yield "half of it"
        yield await self.call_tool(name, arguments, cancellation_token, call_id)


async def compute(expression: str) -> str:
    return str(eval(expression, {}))


def function_tool() -> FunctionTool:
    return FunctionTool(compute, description="Compute.", name="calculator")


class Delegating(OfNoTools):
    """Hands each call to another workbench, which has an AutoGen tool for it."""

    async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
        return await StaticWorkbench([function_tool()]).call_tool(name, arguments, cancellation_token, call_id)


class Forwarding(Streaming, StreamWorkbench):
    """Has a plain function that returns its base class's stream."""

    def call_tool_stream(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
        return super().call_tool_stream(name, arguments, cancellation_token, call_id)


class Calling:
    """No workbench, yet what calls the tools of one."""

    call_tool = OfNoTools.call_tool
    fails = False


class Mixed(Calling, OfNoTools): ...


class Inheriting(Delegating):
    async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
        return await super().call_tool(name, arguments, cancellation_token)


def static() -> StaticWorkbench:
    return StaticWorkbench([function_tool()])


def streaming_static() -> StaticWorkbench:
    return StaticStreamWorkbench([function_tool()])


WORKBENCHES = [OfNoTools, Streaming, Delegating, Inheriting, Forwarding, Mixed, static, streaming_static]


def tools(recording: Any) -> list:
    return recording.spans("execute_tool")


@pytest.mark.parametrize("make", WORKBENCHES)
async def test_a_tool_of_any_workbench_is_recorded_once(recording, model, make) -> None:
    async with lt.rollout("t", rollout_id="r1"):
        await assistant(model, make(), reflect_on_tool_use=True).run(task="rollout 1: how much is 2+3")
    (span,) = tools(recording)
    assert span.attributes[semconv.TOOL_NAME] == "calculator"
    assert span.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == ASKED
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "5"
    assert span.attributes[semconv.AGENT_NAME] == "solver"
    assert span.attributes[semconv.ROLLOUT_ID] == "r1"
    assert span.error is None


@pytest.mark.parametrize("theirs", [7, "one", {"a": 1}])
async def test_an_agent_of_the_users_may_call_anything_its_workbench(recording, model, theirs, monkeypatch) -> None:
    agent = assistant(model, [])
    monkeypatch.setattr(agent, "_workbench", theirs)
    _watch_workbenches_of(agent)  # before: not iterable


async def test_what_a_workbench_says_went_wrong_is_the_spans_error(recording, model) -> None:
    workbench = OfNoTools()
    workbench.fails = True
    result = await assistant(model, workbench).run(task="how much is 2+3")
    assert result.messages[-1].to_text() == "the server is away"
    (span,) = tools(recording)
    assert span.error == span.attributes[semconv.TOOL_CALL_RESULT] == "the server is away"


async def test_a_workbench_that_raises_is_recorded_and_raises_as_before(recording) -> None:
    class Breaks(OfNoTools):
        async def call_tool(self, *args: Any, **kwargs: Any) -> ToolResult:
            raise RuntimeError("no connection")

    async with Breaks() as workbench:
        with pytest.raises(RuntimeError, match="no connection"):
            await workbench.call_tool("calculator", ASKED)
    (span,) = tools(recording)
    assert span.error == "no connection"


async def test_calls_at_once_are_one_span_each_with_their_own_results(recording) -> None:
    async with Delegating() as workbench:
        asked = [{"expression": f"{number}+0"} for number in range(20)]
        await asyncio.gather(
            *(workbench.call_tool("calculator", one, call_id=f"call_{n}") for n, one in enumerate(asked))
        )
    results = {
        span.attributes[semconv.TOOL_CALL_ID]: span.attributes[semconv.TOOL_CALL_RESULT] for span in tools(recording)
    }
    assert len(tools(recording)) == 20
    assert results == {f"call_{number}": str(number) for number in range(20)}


async def test_a_tool_that_a_workbench_uses_for_its_own_is_recorded_below(recording) -> None:
    class Thorough(OfNoTools):
        async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
            await static().call_tool("calculator", {"expression": "1+1"}, cancellation_token, "another")
            return await super().call_tool(name, arguments, cancellation_token, call_id)

    async with Thorough() as workbench:
        assert (await workbench.call_tool("calculator", ASKED, call_id="call_1")).to_text() == "5"
    inner, outer = sorted(tools(recording), key=lambda span: span.attributes[semconv.TOOL_CALL_RESULT])
    assert (inner.parent_span_id, outer.attributes[semconv.TOOL_CALL_ID]) == (outer.span_id, "call_1")


async def test_a_stream_that_is_left_early_is_a_call_that_did_not_fail(recording) -> None:
    async with Streaming() as workbench:
        stream = workbench.call_tool_stream("calculator", ASKED)
        async for item in stream:
            assert item == "half of it"
            break
        before = current()
        await stream.aclose()
        assert current() == before
    await asyncio.sleep(0.05)
    (span,) = tools(recording)
    assert span.error is None


async def test_what_has_the_same_name_in_a_base_that_is_no_workbench_stays_as_it_is(recording) -> None:
    class Legacy:
        def call_tool(self, name: str) -> str:
            return f"{name} of before"

        async def call_tool_stream(self, name: str) -> str:
            return "one answer"

    class Bench(Legacy, OfNoTools):
        async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
            return ToolResult(name=name, result=[TextResultContent(content=Legacy.call_tool(self, name))])

    async with Bench() as workbench:
        # Before: the base's function returned a coroutine, and "async generator" can't be awaited
        assert (await workbench.call_tool("calculator", ASKED)).to_text() == "calculator of before"
        assert await workbench.call_tool_stream("calculator") == "one answer"
    async with Mixed():
        pass
    assert (await Calling().call_tool("calculator", ASKED)).to_text() == "5"  # type: ignore[arg-type]
    (span,) = tools(recording)
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "calculator of before"


async def test_a_stream_of_the_base_class_need_not_be_a_generator(recording) -> None:
    class Items:
        def __init__(self, *items: Any) -> None:
            self.left = list(items)

        def __aiter__(self) -> "Items":
            return self

        async def __anext__(self) -> Any:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    class Base(OfNoTools, StreamWorkbench):
        def call_tool_stream(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
            return Items("half of it", ToolResult(name=name, result=[TextResultContent(content="5")]))

    class Sub(Base):
        async def call_tool_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            async for item in super().call_tool_stream(*args, **kwargs):
                yield item

    async with Sub() as workbench:
        # Before: 'Items' object has no attribute 'aclose'
        assert len([item async for item in workbench.call_tool_stream("calculator", ASKED, call_id="call_1")]) == 2
    (span,) = tools(recording)
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "5"


async def test_a_tool_goes_by_the_name_that_its_override_gives_where_no_tool_tells(recording, model) -> None:
    named = StaticWorkbench([function_tool()], tool_overrides={"calculator": ToolOverride(name="sums")})
    assert (await named.call_tool("sums", ASKED, call_id="call_1")).to_text() == "5"
    assert [span.attributes[semconv.TOOL_NAME] for span in tools(recording)] == ["calculator"]


async def test_a_workbench_that_is_never_entered_is_watched_from_its_modules_import(recording) -> None:
    class McpWorkbench(OfNoTools):
        async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):  # type: ignore[override]
            return ToolResult(name=name, result=[TextResultContent(content="from the server")])

    module = ModuleType("autogen_ext.tools.mcp._workbench")
    module.McpWorkbench = McpWorkbench  # type: ignore[attr-defined]
    watch_workbenches(module)
    workbench = McpWorkbench()
    await workbench.start()
    await workbench.call_tool("fetch", {"url": "/"}, call_id="call_1")
    (span,) = tools(recording)
    assert (span.attributes[semconv.TOOL_NAME], span.attributes[semconv.TOOL_CALL_RESULT]) == (
        "fetch",
        "from the server",
    )


async def test_that_of_mcp_servers_is_watched_from_its_import(recording, monkeypatch) -> None:
    # Names that the newest mcp lacks, and that only the connection to a server needs, which is stood in for here.
    monkeypatch.setattr("mcp.shared.context.RequestContext", dict, raising=False)
    monkeypatch.setattr("mcp.client.streamable_http.streamablehttp_client", None, raising=False)
    mcp = pytest.importorskip("autogen_ext.tools.mcp", exc_type=ImportError)
    from mcp.types import CallToolResult, TextContent

    class Answer(CallToolResult):
        isError: bool = False

    class Connection:
        async def call(self, kind: str, asked: Any) -> asyncio.Future[Answer]:
            assert (kind, asked) == ("call_tool", {"name": "calculator", "kargs": ASKED})
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(Answer(content=[TextContent(type="text", text="5")]))
            return answer

    workbench = mcp.McpWorkbench(
        mcp.StdioServerParams(command="unused"), tool_overrides={"calculator": ToolOverride(name="sums")}
    )
    workbench._actor = Connection()
    assert (await workbench.call_tool("sums", ASKED, call_id="call_1")).to_text() == "5"
    (span,) = tools(recording)
    assert span.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert (span.attributes[semconv.TOOL_NAME], span.attributes[semconv.TOOL_CALL_RESULT]) == ("sums", "5")
