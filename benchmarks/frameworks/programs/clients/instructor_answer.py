"""instructor: structured answers, whole and as they grow."""

from typing import Any

import anthropic  # noqa: F401
import instructor
import openai
from pydantic import BaseModel

from benchmarks.frameworks.program import KEY, MODEL, Task

# instructor imports anthropic in its first call, and with it httpx2, which openai in another thread then sees half
# imported ("partially initialized module 'httpx2'"). Therefore anthropic is imported above.


class Forecast(BaseModel):
    city: str
    weather: str


def play(task: Task) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=task.base_url, api_key=KEY))
    messages: Any = [{"role": "system", "content": task.system}, {"role": "user", "content": task.question}]
    if task.stream:
        for _ in client.create_partial(model=MODEL, messages=messages, response_model=Forecast):
            pass
    else:
        client.create(model=MODEL, messages=messages, response_model=Forecast)
