"""An agent that searches before it answers, as often as it likes: the plain OpenAI client, and two lines of lightning.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
python examples/search/agent.py "In which country does Ana Kelberg live?"

It says "search: WORDS" or "answer: WORDS". What a search finds comes back as a message: its words are the corpus', and
are never trained. Search-R1 (Jin et al. 2025, arXiv 2503.09516) searches in the same way.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import lightning_instrumentation as lt
from corpus import search
from openai import OpenAI

INSTRUCTIONS = "Search, then answer."
EXAMPLES = (
    ("Which country is Otto Sommer from?", "search: Otto Sommer", "Otto Sommer is a judge and lives in Probeton.",
     "search: Probeton", "Probeton is a town in Examplia, on the river Sampa.", "answer: Examplia"),
    ("What river is near Ada Winter's house?", "search: Ada Winter", "Ada Winter is a nurse and lives in Testbrook.",
     "search: Testbrook", "Testbrook is a town in Mockland, on the river Dumma.", "answer: Dumma"),
    ("In which country does Karl Lenz live?", "search: Karl Lenz", "Karl Lenz is a clerk and lives in Musterville.",
     "search: Musterville", "Musterville is a town in Samplestan, on the river Specia.", "answer: Samplestan"),
    ("Which river does Uma Herbst see from home?", "search: Uma Herbst", "Uma Herbst is a cook and lives in Trialsby.",
     "search: Trialsby", "Trialsby is a town in Demoria, on the river Tessel.", "answer: Tessel"),
)  # fmt: skip
"""Question, and then by turns what the agent says and what it is told: a model of this size has to be shown."""

_TURNS = 4
_LONGEST_ANSWER = 60
_MAX_TOKENS = 16

Say: TypeAlias = Callable[[list[dict[str, str]], float], str]
"""Answers a conversation, at a temperature."""


@cache
def client() -> OpenAI:
    return OpenAI(timeout=300)


@lt.agent("search")
def solve(question: str, *, temperature: float = 0.0, say: Say | None = None) -> str:
    """Return the agent's answer; empty when it gave none.

    Args:
        say: in the place of the model.
    """
    messages = [{"role": "system", "content": INSTRUCTIONS}]
    for example in EXAMPLES:
        messages += [_message(place, text) for place, text in enumerate(example)]
    messages.append({"role": "user", "content": question})
    for _ in range(_TURNS):
        said = (say or _say)(messages, temperature)
        what, _, words = said.partition(":")
        if what.strip().lower() == "answer":
            return words.strip()[:_LONGEST_ANSWER]
        if what.strip().lower() != "search":
            return ""
        found = " ".join(search(words)) or "Nothing was found."
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": found}]
    return ""


def _message(place: int, text: str) -> dict[str, str]:
    return {"role": "assistant" if place % 2 else "user", "content": text}


def ask(messages: list[dict[str, str]], temperature: float) -> tuple[str, str]:
    """Return what the model says, and the id of its response."""
    shown: Any = messages
    made = client().chat.completions.create(
        model=os.environ.get("OPENAI_MODEL", "search"),
        messages=shown,
        max_tokens=_MAX_TOKENS,
        temperature=temperature,
    )
    return made.choices[0].message.content or "", made.id


def _say(messages: list[dict[str, str]], temperature: float) -> str:
    return ask(messages, temperature)[0]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python examples/search/agent.py "QUESTION"')
    print(solve(sys.argv[1]) or "(no answer)")
