"""A writer and a critic at someone else's engine, in rollouts of two attempts at each of two tasks."""

import os

import lightning_instrumentation as lt
from openai import OpenAI

client = OpenAI(base_url=os.environ["ELSEWHERE"], api_key="unused", timeout=300)
MODEL = os.environ.get("ELSEWHERE_MODEL", "theirs")


@lt.agent("writer")
def write(topic: str) -> str:
    messages: list = [{"role": "user", "content": f"write about {topic}"}]
    reply = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=1.0)
    return reply.choices[0].message.content or ""


@lt.agent("critic")
def criticise(text: str) -> None:
    messages: list = [{"role": "user", "content": f"what is wrong with {text[:10]!r}?"}]
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0.7)


for topic in ("rain", "snow"):
    for number in range(2):
        with lt.rollout(topic, rollout_id=f"{topic}-{number}"):
            criticise(write(topic))
            lt.reward(float(number))
lt.flush(30)
