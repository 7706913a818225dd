"""A clerk who reads a customer's letter and names the town, for a label of 30 characters: the plain OpenAI client.

It gets one task on standard input (``tasks.py``) and prints its answer's reward, as a program for
``lightning-trainer prompts optimize`` does. Its instructions have a name, so that a better text can be served:

    lightning-trainer serve --config examples/clerk/lightning.toml
    head -1 examples/clerk/heldout.jsonl | python examples/clerk/clerk.py
"""

import json
import os
import sys

import lightning_instrumentation as lt
from openai import OpenAI

INSTRUCTIONS = "Answer with the name of a town."
LABEL = 30
"""How many characters fit on a label."""


@lt.agent("clerk")
def answer(question: str) -> str:
    endpoint = os.environ.get("LIGHTNING_ENDPOINT", "http://127.0.0.1:8321")
    client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", f"{endpoint}/v1"), api_key="unused", timeout=120)
    made = client.chat.completions.create(
        model="clerk",
        messages=[
            {"role": "system", "content": lt.prompt("clerk", INSTRUCTIONS)},
            {"role": "user", "content": question},
        ],
        max_tokens=16,
        temperature=0.0,
        stop=["\n"],
    )
    return (made.choices[0].message.content or "").strip()


def score(said: str, town: str) -> float:
    """Return 1 if an answer names the town and fits on a label, else 0."""
    return float(town in said and len(said) <= LABEL)


def main() -> None:
    task = json.load(sys.stdin)
    said = answer(task["question"])
    print(said)
    print(score(said, task["town"]))


if __name__ == "__main__":
    main()
