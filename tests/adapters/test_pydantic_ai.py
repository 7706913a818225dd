"""Pydantic AI's agents are known by their own names, with nothing instrumented."""

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv


@pytest.fixture
def agent(recording):
    import pydantic_ai  # takes a second, which collecting need not
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=recording.model.base_url, api_key="k")
    return lambda name: pydantic_ai.Agent(OpenAIChatModel("m", provider=provider), name=name)


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
