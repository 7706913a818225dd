"""Questions about the corpus with one right answer; those of two hops need what the first search found for the second.

Held-out questions are about people, towns and countries that training never asks for, in words that it never uses.
"""

import random
import re
from dataclasses import dataclass

from corpus import Person, people

_TRAIN = (
    ("In which town does {name} live?", "town", 1),
    ("Which river is {town} on?", "river", 1),
    ("In which country does {name} live?", "country", 2),
    ("{name} lives in a town. Which country is it in?", "country", 2),
    ("Which river flows through the town of {name}?", "river", 2),
    ("{name} fishes at home. In which river?", "river", 2),
)
_HELDOUT = (
    ("What is the home town of {name}?", "town", 1),
    ("What is the home country of {name}?", "country", 2),
    ("On which river is the town where {name} lives?", "river", 2),
)


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    answer: str
    hops: int
    """Searches that it takes."""


def train_tasks(step: int, count: int) -> list[Task]:
    """Return the tasks of a step; always the same ones."""
    return _tasks(f"step-{step}", _TRAIN, [one for one in people() if not one.held_out], count)


def heldout_tasks(count: int) -> list[Task]:
    return _tasks("heldout", _HELDOUT, [one for one in people() if one.held_out], count)


def score(said: str, task: Task) -> float:
    """Return 1.0 where the answer is the right one to the letter, but for case, articles and punctuation; else 0.0."""
    return float(_plain(said) == _plain(task.answer))


def _tasks(prefix: str, kinds: tuple[tuple[str, str, int], ...], who: list[Person], count: int) -> list[Task]:
    rng = random.Random(f"search {prefix}")
    tasks = []
    for index in range(count):
        wording, asked, hops = kinds[index % len(kinds)]
        person = rng.choice(who)
        question = wording.format(name=person.name, town=person.town)
        tasks.append(Task(f"{prefix}-{index}", question, getattr(person, asked), hops))
    return tasks


def _plain(text: str) -> str:
    return " ".join(word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the"))
