"""Semantic Kernel: a chat completion agent with a plugin."""

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

from benchmarks.frameworks.program import KEY, MODEL, Task


class Weather:
    @kernel_function(name="weather", description="Tell the weather of a city.")
    def weather(self, city: str) -> str:
        return f"sunny in {city}"


async def play(task: Task) -> None:
    client = AsyncOpenAI(base_url=task.base_url, api_key=KEY)
    service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
    agent = ChatCompletionAgent(service=service, name="forecaster", instructions=task.system, plugins=[Weather()])
    if task.stream:
        async for _ in agent.invoke_stream(messages=task.question):
            pass
    else:
        await agent.get_response(messages=task.question)
