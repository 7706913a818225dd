"""smolagents: an agent that calls tools, the last of which is its final answer."""

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from benchmarks.frameworks.program import KEY, MODEL, Task


@tool
def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: the city.
    """
    return f"sunny in {city}"


def play(task: Task) -> None:
    model = OpenAIServerModel(model_id=MODEL, api_base=task.base_url, api_key=KEY)
    agent = ToolCallingAgent(
        tools=[weather], model=model, instructions=task.system, stream_outputs=task.stream, verbosity_level=0
    )
    agent.run(task.question, max_steps=2)  # the scripted engine would call the tool for ever
