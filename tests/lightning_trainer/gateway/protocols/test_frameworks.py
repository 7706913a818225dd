"""Frameworks that converse by the newer APIs: what they send back is the policy's own turn again."""

import json
from typing import Any

import openai
import pytest


def _options(gateway) -> dict[str, Any]:
    return {"base_url": f"{gateway.url}/v1", "api_key": "none", "max_retries": 0}


def _calls_once(gateway) -> None:
    """The engine thinks, calls the tool, and then answers."""
    engine = gateway.engine
    engine.reasoning = "Hm."
    engine.tool_call = lambda body: not any(message["role"] == "tool" for message in body["messages"])


_AGAIN = [
    {"role": "user", "content": "6*7?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "Hm.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
]


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without the spaces in the calls' arguments, which some write anew."""
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
    return messages


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_agents(gateway, api: str, streamed: bool) -> None:
    import agents

    _calls_once(gateway)
    kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
    untraced = agents.RunConfig(tracing_disabled=True)  # of this run alone: other tests need the SDK's tracing

    @agents.function_tool
    def calculator(expression: str) -> str:
        """Compute."""
        return "42"

    async with openai.AsyncOpenAI(**_options(gateway)) as client:
        agent = agents.Agent("a", tools=[calculator], model=kind("sql", openai_client=client))
        if streamed:
            run = agents.Runner.run_streamed(agent, "6*7?", run_config=untraced)
            async for _ in run.stream_events():
                pass
        else:
            run = await agents.Runner.run(agent, "6*7?", run_config=untraced)
    assert run.final_output == "The café is open."
    assert _plain(gateway.engine.requests[1]["messages"]) == _AGAIN


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_pydantic_ai(gateway, api: str, streamed: bool) -> None:
    import anthropic
    import pydantic_ai
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    _calls_once(gateway)
    if api == "messages":
        client = anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0)
        model: Any = AnthropicModel("sql", provider=AnthropicProvider(anthropic_client=client))
    else:
        provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(**_options(gateway)))
        model = (OpenAIResponsesModel if api == "responses" else OpenAIChatModel)("sql", provider=provider)
    agent = pydantic_ai.Agent(model)

    @agent.tool_plain
    def calculator(expression: str) -> str:
        """Compute."""
        return "42"

    if streamed:
        async with agent.run_stream("6*7?") as run:
            output = await run.get_output()
    else:
        output = (await agent.run("6*7?")).output
    assert output == "The café is open."
    assert _plain(gateway.engine.requests[1]["messages"]) == _AGAIN


@pytest.mark.parametrize("streamed", [False, True])
async def test_langchain_responses(gateway, streamed: bool) -> None:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    _calls_once(gateway)

    def calculator(expression: str) -> str:
        """Compute."""
        return "42"

    include = ["reasoning.encrypted_content"]  # in a stream, this is all of the reasoning that it keeps
    model = ChatOpenAI(
        model="sql", use_responses_api=True, streaming=streamed, store=False, include=include, **_options(gateway)
    )
    agent = create_agent(model, [calculator])
    asked: Any = {"messages": [("user", "6*7?")]}
    said = (await agent.ainvoke(asked))["messages"][-1]
    assert said.text == "The café is open."
    assert _plain(gateway.engine.requests[1]["messages"]) == _AGAIN
