"""AutoGen AgentChat with its own OpenAI client: who speaks, in which rollout, and what tools do."""

import asyncio
import gc
import json
import threading
from typing import Any

import lightning_instrumentation as lt
import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import (
    AgentId,
    CancellationToken,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import current_agent

SAYS = "You are AGENT[{}]."
"""System message: the prompt itself says who asks, and the task in which rollout (tests/adapters/truth.py)."""


@pytest.fixture
def client(model):
    return new_client(model)


def new_client(model: Any) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="m",
        base_url=model.base_url,
        api_key="x",
        max_retries=0,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "family": "unknown",
            "structured_output": False,
        },
    )


async def calculator(expression: str) -> str:
    """Compute."""
    return str(eval(expression, {}))


def assistant(name: str, client: Any, **options: Any) -> AssistantAgent:
    return AssistantAgent(name, client, system_message=SAYS.format(name), **options)


def agents_of(spans: Any) -> list:
    return [(span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.AGENT_SOURCE)) for span in spans]


def last_text(result: TaskResult) -> str:
    return result.messages[-1].to_text()


async def test_an_agent_with_a_tool(truth, recording, client):
    agent = assistant("solver", client, tools=[calculator], reflect_on_tool_use=True)
    async with lt.rollout("t", rollout_id="r1"):
        result = await agent.run(task="rollout 1: how much is 2+3")
    assert last_text(result) == "answer0 to 5 "
    truth.check_every_call(recording, calls=2)
    (span,) = recording.spans("execute_tool")
    assert agents_of([*recording.spans("chat"), span]) == [("solver", "autogen")] * 3
    assert span.attributes[semconv.TOOL_NAME] == "calculator"
    assert span.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"expression": "2+3"}
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "5"


@pytest.mark.parametrize("streams_tokens", [False, True])
async def test_a_streamed_run_names_its_agent_and_not_its_consumer(truth, recording, client, streams_tokens):
    agent = assistant("solver", client, tools=[calculator], model_client_stream=streams_tokens)
    async with lt.rollout("t", rollout_id="r1"):
        async for _ in agent.run_stream(task="rollout 1: how much is 2+3"):
            assert current_agent() is None
    truth.check_every_call(recording, calls=1)
    assert [span.attributes.get(semconv.STREAM_COMPLETE) for span in recording.spans("chat")] == [
        True if streams_tokens else None
    ]


@pytest.mark.long
async def test_a_stream_that_was_left_early_leaves_nothing_behind(recording, client):
    agent = assistant("solver", client, model_client_stream=True)
    async with lt.rollout("t", rollout_id="r1"):
        stream = agent.run_stream(task="rollout 1: many words to stream")
        async for message in stream:
            if getattr(message, "source", None) == "solver":
                break
        await stream.aclose()
        assert current_agent() is None
    # AutoGen leaves its inner streams to the event loop and the collector of garbage.
    for _ in range(20):
        gc.collect()
        await asyncio.sleep(0.05)
        if recording.spans("chat"):
            break
    (span,) = recording.spans("chat")
    assert agents_of([span]) == [("solver", "autogen")]


async def test_an_agent_that_is_called_without_run(truth, recording, client):
    agent = assistant("solver", client)
    message = TextMessage(content="rollout 1: hello", source="user")
    async with lt.rollout("t", rollout_id="r1"):
        await agent.on_messages([message], CancellationToken())
        async for _ in agent.on_messages_stream([message], CancellationToken()):
            assert current_agent() is None
    truth.check_every_call(recording, calls=2)


async def test_round_robin_each_call_under_its_own_name(truth, recording, client):
    async with lt.rollout("t", rollout_id="r1"):
        await team_of(client, ["writer", "critic"], turns=4).run(task="rollout 1: write")
    truth.check_every_call(recording, calls=4)
    assert [name for name, _ in agents_of(recording.spans("chat"))] == ["writer", "critic"] * 2


def team_of(client: Any, names: list[str], *, turns: int, **options: Any) -> RoundRobinGroupChat:
    agents: list[Any] = [assistant(name, client) for name in names]
    return RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(turns + 1), **options)


async def test_swarm_hands_over_and_the_next_agent_speaks(truth, recording, client):
    alice = assistant("alice", client, handoffs=["bob"])
    bob = assistant("bob", client, tools=[calculator])
    team = Swarm([alice, bob], termination_condition=MaxMessageTermination(6))
    async with lt.rollout("t", rollout_id="r1"):
        async for _ in team.run_stream(task="rollout 1: how much is 2+3"):
            pass
    chats = recording.spans("chat")
    truth.check_every_call(recording, calls=len(chats))
    assert [name for name, _ in agents_of(chats)][:2] == ["alice", "bob"]
    used = [(span.attributes[semconv.TOOL_NAME], span.attributes[semconv.AGENT_NAME]) for span in tools(recording)]
    assert used[0] == ("transfer_to_bob", "alice")
    assert set(used[1:]) == {("calculator", "bob")}


def tools(recording: Any) -> list:
    return recording.spans("execute_tool")


@pytest.mark.parametrize("streams", [False, True])
async def test_the_selectors_own_calls_are_the_managers(truth, recording, client, streams):
    team = SelectorGroupChat(
        [assistant("writer", client), assistant("critic", client)],
        client,
        selector_prompt=f"{SAYS.format('SelectorGroupChatManager')} rollout 1: pick critic",
        allow_repeated_speaker=True,
        model_client_streaming=streams,
        termination_condition=MaxMessageTermination(3),
    )
    async with lt.rollout("t", rollout_id="r1"):
        await team.run(task="rollout 1: write")
    truth.check_every_call(recording, calls=4)
    assert [name for name, _ in agents_of(recording.spans("chat"))] == ["SelectorGroupChatManager", "critic"] * 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_used_as_a_tool_speaks_for_itself_below_the_tool(recording, client, streamed):
    helper = assistant("helper", client)
    boss = assistant("boss", client, tools=[AgentTool(helper, return_value_as_last_message=True)])
    async with lt.rollout("t", rollout_id="r1"):
        task = TextMessage(content="rollout 1: ask", source="user")
        if streamed:
            async for _ in boss.run_stream(task=task):
                assert current_agent() is None
        else:
            await boss.run(task=task)
    (tool,) = tools(recording)
    assert agents_of([*recording.spans("chat"), tool]) == [(n, "autogen") for n in ("boss", "helper", "boss")]
    (helped,) = [span for span in recording.spans("chat") if span.attributes[semconv.AGENT_NAME] == "helper"]
    assert helped.parent_span_id == tool.span_id
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "answer0 to 2+3 "


async def test_a_team_inside_a_team_and_a_decorated_function_inside_an_agent(truth, recording, client):
    @lt.agent("inner")
    async def ask(text: str) -> str:
        """Ask."""
        result = await client.create([UserMessage(content=f"{SAYS.format('inner')} rollout 1: {text}", source="user")])
        return str(result.content)

    async def consult(text: str) -> str:
        """Consult."""
        return await ask(text)

    inner = team_of(client, ["writer"], turns=1)
    boss = assistant("boss", client, tools=[consult])
    outer = RoundRobinGroupChat([inner, boss], termination_condition=MaxMessageTermination(3))
    async with lt.rollout("t", rollout_id="r1"):
        await outer.run(task="rollout 1: write")
    truth.check_every_call(recording, calls=3)
    assert [name for name, _ in agents_of(recording.spans("chat"))] == ["writer", "boss", "inner"]


async def test_an_agent_of_the_core_api_goes_by_its_type(truth, recording, client):
    class Worker(RoutedAgent):
        @message_handler
        async def handle(self, message: TextMessage, ctx: MessageContext) -> TextMessage:
            asked = UserMessage(content=f"{SAYS.format('worker')} {message.content}", source="user")
            return TextMessage(content=str((await client.create([asked])).content), source="worker")

    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker("works"))
    runtime.start()
    async with lt.rollout("t", rollout_id="r1"):
        await runtime.send_message(TextMessage(content="rollout 1: hi", source="user"), AgentId("worker", "default"))
    await runtime.stop()
    truth.check_every_call(recording, calls=1)


async def test_a_custom_agent_behaves_and_is_named(truth, recording, client):
    class Custom(BaseChatAgent):
        @property
        def produced_message_types(self):
            return (TextMessage,)

        async def on_messages(self, messages, cancellation_token):
            asked = UserMessage(content=f"{SAYS.format('custom')} rollout 1: hi", source="user")
            await client.create([asked])
            return Response(chat_message=TextMessage(content="done", source=self.name))

        async def on_reset(self, cancellation_token):
            pass

    async with lt.rollout("t", rollout_id="r1"):
        await Custom("custom", "does").run(task="x")
        await RoundRobinGroupChat([Custom("custom", "does")], max_turns=1).run(task="x")
    truth.check_every_call(recording, calls=2)


@pytest.mark.long
async def test_forty_rollouts_on_one_runtime_that_was_started_before_them_stay_apart(truth, recording, client):
    runtime = SingleThreadedAgentRuntime()
    runtime.start()

    async def attempt(number: int) -> None:
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            task = f"rollout {number}: how much is 2+3"
            if number % 3 == 0:
                await team_of(client, ["writer", "critic"], turns=2, runtime=runtime).run(task=task)
            elif number % 3 == 1:
                async for _ in team_of(client, ["writer", "critic"], turns=2, runtime=runtime).run_stream(task=task):
                    pass
            else:
                team = SelectorGroupChat(
                    [assistant("writer", client, model_client_stream=True), assistant("critic", client)],
                    client,
                    selector_prompt=f"{SAYS.format('SelectorGroupChatManager')} rollout {number}: pick writer",
                    termination_condition=MaxMessageTermination(2),
                    runtime=runtime,
                )
                await team.run(task=task)

    await asyncio.gather(*(attempt(number) for number in range(42)))
    await runtime.stop()
    truth.check_every_call(recording, calls=84)


async def test_a_runtime_started_inside_a_rollout_does_not_lend_it_to_others(recording, client):
    runtime = SingleThreadedAgentRuntime()
    async with lt.rollout("t0", rollout_id="r0"):
        runtime.start()
    await team_of(client, ["writer"], turns=1, runtime=runtime).run(task="no rollout")
    await runtime.stop()
    (span,) = recording.spans("chat")
    assert semconv.ROLLOUT_ID not in span.attributes
    assert span.attributes[semconv.AGENT_NAME] == "writer"


@pytest.mark.long
def test_forty_rollouts_in_threads_and_tasks_each_with_a_tool_stay_apart(truth, recording, model):
    async def attempt(client: Any, number: int) -> None:
        agent = assistant("solver", client, tools=[calculator], reflect_on_tool_use=True)
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            await agent.run(task=f"rollout {number}: how much is 2+3")

    async def some(first: int) -> None:
        client = new_client(model)
        await asyncio.gather(*(attempt(client, number) for number in range(first, first + 10)))

    threads = [threading.Thread(target=lambda first=first: asyncio.run(some(first))) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    truth.check_every_call(recording, calls=80)
    assert sorted(span.attributes[semconv.ROLLOUT_ID] for span in tools(recording)) == sorted(
        f"r{number}" for number in range(40)
    )


async def test_a_tool_that_raises_and_its_span_says_so(recording, client):
    async def breaks(expression: str) -> str:
        """Break."""
        raise RuntimeError(f"cannot {expression}")

    result = await assistant("solver", client, tools=[breaks]).run(task="how much is 2+3")
    assert last_text(result) == "cannot 2+3"
    assert recording.span("execute_tool").error == "cannot 2+3"
