"""OpenAI Agents SDK with real agents: who speaks, in which rollout, what tools do, and its own tracing as it was."""

import asyncio
import contextvars
import json
import sys
import threading
import types
from typing import Any

import httpx2
import lightning_instrumentation as lt
import openai
import pytest
from lightning_adapters import openai_agents
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import current, current_agent

SAYS = "You are AGENT[{}]."
"""System message: the prompt itself says who asks, and the task in which rollout (tests/adapters/truth.py)."""
QUESTION = "rollout 1: how much is 2+3"


@pytest.fixture(scope="module")
def sdk() -> Any:
    """The package; importing it takes more than a second, which collecting need not."""
    import agents

    return agents


@pytest.fixture
def new_model(sdk, model):
    def new() -> Any:
        client = openai.AsyncOpenAI(base_url=model.base_url, api_key="x", max_retries=0)
        return sdk.OpenAIChatCompletionsModel("m", openai_client=client)

    return new


@pytest.fixture
def chat(new_model):
    return new_model()


@pytest.fixture
def calculator(sdk):
    @sdk.function_tool
    def calculator(expression: str) -> str:
        """Compute."""
        return str(eval(expression, {}))

    return calculator


@pytest.fixture
def agent(sdk):
    def named(name: str, model: Any, **options: Any) -> Any:
        return sdk.Agent(name, instructions=SAYS.format(name), model=model, **options)

    return named


@pytest.fixture
def run(sdk, way):
    """A run of an agent, in the way that the test is about."""
    return ways(sdk)[way]


def ways(sdk: Any) -> dict[str, Any]:
    async def streamed(starting: Any, question: str) -> Any:
        run = sdk.Runner.run_streamed(starting, question)
        async for _ in run.stream_events():
            assert current_agent() is None
        return run

    return {"run": sdk.Runner.run, "streamed": streamed}


WAYS = ("run", "streamed")


def named(spans: Any) -> list:
    return [(span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.AGENT_SOURCE)) for span in spans]


def check_the_calculator(truth: Any, recording: Any, call_count: int = 2) -> None:
    truth.check_every_call(recording, calls=call_count)
    (span,) = recording.spans("execute_tool")
    assert named([*recording.spans("chat"), span]) == [("solver", "openai-agents")] * (call_count + 1)
    assert span.attributes[semconv.TOOL_NAME] == "calculator"
    assert span.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"expression": "2+3"}
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "5"


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_with_a_tool(agent, calculator, truth, recording, chat, run, way):
    async with lt.rollout("t", rollout_id="r1"):
        result = await run(agent("solver", chat, tools=[calculator]), QUESTION)
    assert result.final_output == "answer0 to 5 "
    check_the_calculator(truth, recording)
    complete = [span.attributes.get(semconv.STREAM_COMPLETE) for span in recording.spans("chat")]
    assert complete == [True if way == "streamed" else None] * 2


def test_an_agent_with_a_tool_sync(sdk, agent, calculator, truth, recording, chat):
    with lt.rollout("t", rollout_id="r1"):
        result = sdk.Runner.run_sync(agent("solver", chat, tools=[calculator]), QUESTION)
    assert result.final_output == "answer0 to 5 "
    check_the_calculator(truth, recording)


@pytest.mark.parametrize("way", WAYS)
async def test_after_a_handoff_the_other_agent_speaks(agent, truth, recording, chat, run):
    triage = agent("triage", chat, handoffs=[agent("expert", chat)])
    async with lt.rollout("t", rollout_id="r1"):
        result = await run(triage, QUESTION)
    assert result.last_agent.name == "expert"
    truth.check_every_call(recording, calls=2)
    assert [name for name, _ in named(recording.spans("chat"))] == ["triage", "expert"]


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_used_as_a_tool_speaks_for_itself_below_the_tool(agent, recording, chat, run):
    helper = agent("helper", chat)
    boss = agent("boss", chat, tools=[helper.as_tool(tool_name="ask_helper", tool_description="Asks.")])
    async with lt.rollout("t", rollout_id="r1"):
        await run(boss, QUESTION)
    (tool,) = recording.spans("execute_tool")
    chats = recording.spans("chat")
    assert [name for name, _ in named([*chats, tool])] == ["boss", "helper", "boss", "boss"]
    assert chats[1].parent_span_id == tool.span_id
    assert {span.attributes[semconv.ROLLOUT_ID] for span in chats} == {"r1"}
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "answer0 to 2+3 "


async def test_an_agent_that_guards_another_speaks_for_itself(sdk, agent, truth, recording, chat):
    guard = agent("guard", chat)

    @sdk.input_guardrail
    async def harmless(context, starting, text):
        await sdk.Runner.run(guard, str(text))
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    async with lt.rollout("t", rollout_id="r1"):
        await sdk.Runner.run(agent("solver", chat, input_guardrails=[harmless]), QUESTION)
    truth.check_every_call(recording, calls=2)


async def test_a_decorated_function_inside_a_tool_and_one_around_an_agent(sdk, agent, truth, recording, chat, model):
    raw = openai.AsyncOpenAI(base_url=model.base_url, api_key="x")

    @lt.agent("inner")
    async def ask() -> None:
        asked = f"{SAYS.format('inner')} rollout 1"
        await raw.chat.completions.create(model="m", messages=[{"role": "user", "content": asked}])

    @sdk.function_tool
    async def consult() -> str:
        """Consult."""
        await ask()
        return "done"

    @lt.agent("outer")
    async def solve() -> None:
        await sdk.Runner.run(agent("boss", chat, tools=[consult]), QUESTION)

    async with lt.rollout("t", rollout_id="r1"):
        await solve()
    truth.check_every_call(recording, calls=3)


async def test_a_tool_that_waited_for_approval_is_its_agents(sdk, agent, truth, recording, chat):
    @sdk.function_tool(needs_approval=True)
    def guarded(expression: str) -> str:
        """Compute."""
        return "5"

    solver = agent("solver", chat, tools=[guarded])
    async with lt.rollout("t", rollout_id="r1"):
        asked = await sdk.Runner.run(solver, QUESTION)
        assert recording.spans("execute_tool") == []
        state = asked.to_state()
        state.approve(asked.interruptions[0])
        result = await sdk.Runner.run(solver, state)
    assert result.final_output == "answer0 to 5 "
    truth.check_every_call(recording, calls=2)
    assert named(recording.spans("execute_tool")) == [("solver", "openai-agents")]


async def test_a_tool_that_fails_tells_the_model_and_its_span_says_so(sdk, agent, recording, chat):
    @sdk.function_tool
    def breaks(expression: str) -> str:
        """Break."""
        raise RuntimeError(f"cannot {expression}")

    result = await sdk.Runner.run(agent("solver", chat, tools=[breaks]), QUESTION)
    span = recording.span("execute_tool")
    assert span.error == span.attributes[semconv.TOOL_CALL_RESULT]
    assert span.error in result.final_output


@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_a_tools_exception_that_the_user_words_is_the_spans_error(sdk, agent, recording, chat, timeout):
    # Before: only the SDK's own wording was an error, so that a tool that always failed looked as if it worked.
    @sdk.function_tool(failure_error_function=lambda context, error: f"sorry, {error}", timeout=timeout)
    async def breaks(expression: str) -> str:
        """Break."""
        raise RuntimeError(f"cannot {expression}")

    @sdk.function_tool
    async def asks(expression: str) -> str:
        """Ask another agent, whose tool fails."""
        return str((await sdk.Runner.run(agent("expert", chat, tools=[breaks]), expression)).final_output)

    await sdk.Runner.run(agent("solver", chat, tools=[asks]), QUESTION)
    errors = {span.attributes[semconv.TOOL_NAME]: span.error for span in recording.spans("execute_tool")}
    assert errors == {"breaks": "sorry, cannot 2+3", "asks": None}


@pytest.mark.long
async def test_forty_rollouts_run_and_streamed_at_once_stay_apart(sdk, agent, calculator, truth, recording, chat):
    triage = agent("triage", chat, handoffs=[agent("expert", chat)])
    solver = agent("solver", chat, tools=[calculator])
    both = ways(sdk)

    async def attempt(number: int) -> None:
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            start = triage if number % 4 < 2 else solver
            await both["run" if number % 2 else "streamed"](start, f"rollout {number}: how much is 2+3")

    await asyncio.gather(*(attempt(number) for number in range(40)))
    truth.check_every_call(recording, calls=80)
    assert len(recording.spans("execute_tool")) == 20


@pytest.mark.long
def test_forty_rollouts_in_threads_stay_apart(sdk, agent, calculator, truth, recording, new_model):
    def attempts(first: int) -> None:
        solver = agent("solver", new_model(), tools=[calculator])
        for number in range(first, first + 5):
            with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
                sdk.Runner.run_sync(solver, f"rollout {number}: how much is 2+3")

    threads = [threading.Thread(target=attempts, args=(first,)) for first in range(0, 40, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    truth.check_every_call(recording, calls=80)


# -- the SDK's own tracing -------------------------------------------------------------------------------------------


async def test_its_own_tracing_has_the_same_processors_and_the_same_spans(sdk, agent, calculator, recording, chat):
    class Collecting(sdk.tracing.TracingProcessor):
        def __init__(self) -> None:
            self.kinds: list[str] = []

        def on_span_end(self, span: Any) -> None:
            self.kinds.append(span.span_data.type)

        def on_trace_start(self, trace: Any) -> None: ...
        def on_trace_end(self, trace: Any) -> None: ...
        def on_span_start(self, span: Any) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self) -> None: ...

    provider: Any = sdk.tracing.get_trace_provider()
    before = provider._multi_processor._processors
    assert [type(one).__name__ for one in before] == ["BatchTraceProcessor"]
    collecting = Collecting()
    try:
        sdk.set_trace_processors([collecting])
        await sdk.Runner.run(agent("solver", chat, tools=[calculator]), QUESTION)
    finally:
        sdk.set_trace_processors(list(before))
    assert sorted(collecting.kinds) == ["agent", "function", "generation", "generation", "task", "turn", "turn"]


async def test_where_its_tracing_is_off_agents_are_named_all_the_same(sdk, agent, calculator, truth, recording, chat):
    async with lt.rollout("t", rollout_id="r1"):
        await sdk.Runner.run(
            agent("solver", chat, tools=[calculator]), QUESTION, run_config=sdk.RunConfig(tracing_disabled=True)
        )
    check_the_calculator(truth, recording)


# -- the Responses API -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_calls_of_the_responses_api_are_made_by_their_agent(sdk, agent, recording, run):
    heard: list[tuple] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        agent_there, identity = current_agent(), current().identity
        heard.append((agent_there and agent_there.name, identity and identity.rollout_id))
        body = json.loads(request.content)
        response = responses_answer(body)
        if not body.get("stream"):
            return httpx2.Response(200, json=response)
        event = {"type": "response.completed", "sequence_number": 0, "response": response}
        text = f"event: response.completed\ndata: {json.dumps(event)}\n\n"
        return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client = openai.AsyncOpenAI(base_url="http://responses.test/v1", api_key="x", http_client=http)
    model = sdk.OpenAIResponsesModel("m", openai_client=client)
    triage = agent("triage", model, handoffs=[agent("expert", model)])
    async with lt.rollout("t", rollout_id="r1"):
        result = await run(triage, QUESTION)
    assert result.final_output == "done"
    assert heard == [("triage", "r1"), ("expert", "r1")]


def responses_answer(body: dict) -> dict:
    """A call of the first tool, and text where there is none."""
    if body.get("tools"):
        item: dict = {
            "type": "function_call",
            "id": "f1",
            "call_id": "call_1",
            "name": body["tools"][0]["name"],
            "arguments": "{}",
            "status": "completed",
        }
    else:
        text = {"type": "output_text", "text": "done", "annotations": []}
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1,
            "output_tokens": 1,
            "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


# -- what is not the SDK ---------------------------------------------------------------------------------------------


def test_a_module_of_the_users_that_has_the_same_name_is_left_alone(sdk, monkeypatch):
    monkeypatch.delitem(sys.modules, "agents.run_internal.run_loop")
    theirs: Any = types.ModuleType("agents.run")
    theirs.run_single_turn = lambda: 1
    openai_agents.watch_turns(theirs)
    assert theirs.run_single_turn() == 1
    assert not hasattr(theirs.run_single_turn, "__wrapped__")


async def test_a_tool_that_is_closed_in_another_context_ends_as_it_would(recording) -> None:
    # Before: ValueError, "was created in a different Context", in place of the tool's own end.
    async def tool(**given: Any) -> None:
        await asyncio.sleep(60)

    call = openai_agents._run_tool(tool, None, (), {"function_tool": types.SimpleNamespace(name="slow")})
    contextvars.Context().run(call.send, None)
    call.close()
    (span,) = recording.spans("execute_tool")
    assert span.attributes[semconv.TOOL_NAME] == "slow"
    assert openai_agents._running.get() is None
