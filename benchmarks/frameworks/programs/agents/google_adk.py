"""Google ADK: an agent over LiteLLM, in its own runner."""

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from benchmarks.frameworks.program import KEY, MODEL, Task


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def play(task: Task) -> None:
    model = LiteLlm(model=f"openai/{MODEL}", api_base=task.base_url, api_key=KEY)
    agent = LlmAgent(name="forecaster", model=model, instruction=task.system, tools=[weather])
    runner = InMemoryRunner(agent=agent, app_name="weather")
    session = await runner.session_service.create_session(app_name="weather", user_id="user")
    mode = StreamingMode.SSE if task.stream else StreamingMode.NONE
    async for _ in runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.Content(role="user", parts=[types.Part(text=task.question)]),
        run_config=RunConfig(streaming_mode=mode),
    ):
        pass
