"""LlamaIndex: a function agent over an OpenAI-like model."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

from benchmarks.frameworks.program import KEY, MODEL, Task


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def play(task: Task) -> None:
    model = OpenAILike(
        model=MODEL, api_base=task.base_url, api_key=KEY, is_chat_model=True, is_function_calling_model=True
    )
    agent = FunctionAgent(tools=[weather], llm=model, system_prompt=task.system, streaming=task.stream)
    await agent.run(user_msg=task.question)
