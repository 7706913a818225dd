"""Questions about the corpus with one right answer, which takes two searches: the second needs what the first found.

Held-out questions are about people, towns and countries that training never asks for, in sentences that it never uses.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from corpus import Person, people

_ASKED = ("country", "river")
"""What is asked for, in turn; both take two searches. A model of this size that is also asked for towns, which take
one, learns in three steps to stop after the first search, and never searches twice again."""
_TRAIN = {
    "country": (
        "In which country does {name} live?",
        "{name} lives in a town. Which country is it in?",
        "What country is {name} from?",
        "Name the country of {name}.",
        "{name} pays taxes. To which country?",
        "Which country is home to {name}?",
        "Tell me the country where {name} works.",
        "{name} votes. In which country?",
        "Of which country is {name} a citizen?",
        "What country does the passport of {name} name?",
        "{name} has never left one country. Which one?",
        "To what country do letters for {name} go?",
    ),
    "river": (
        "Which river flows through the town of {name}?",
        "{name} fishes near the house. In which river?",
        "Name the river that {name} lives on.",
        "What river does {name} swim in?",
        "{name} rows a boat. On which river?",
        "Which river does {name} cross every morning?",
        "Tell me the river by the home of {name}.",
        "{name} fears floods. Of which river?",
        "Along which river does {name} cycle?",
        "What is the river in the town of {name} called?",
        "{name} waters a garden. From which river?",
        "By what river does {name} walk the dog?",
    ),
}
"""Many, because a model that has learned five sentences answers those, and half of the time not a sixth."""
_HELDOUT = {
    "country": (
        "What is the home country of {name}?",
        "In what country is the house of {name}?",
        "{name} sends a postcard. From which country?",
        "Which country's laws does {name} obey?",
    ),
    "river": (
        "On which river is the town where {name} lives?",
        "What river runs past the house of {name}?",
        "{name} throws a stone into the water. Into which river?",
        "Near which river does {name} live?",
    ),
}


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    answer: str
    asked: str
    """What for: country or river."""


def train_tasks(step: int, count: int) -> list[Task]:
    """Return the tasks of a step; always the same ones."""
    return _tasks(f"step-{step}", _TRAIN, [one for one in people() if not one.held_out], count)


def heldout_tasks(count: int) -> list[Task]:
    return _tasks("heldout", _HELDOUT, [one for one in people() if one.held_out], count)


def score(said: str, task: Task) -> float:
    """Return 1.0 where the answer is the right one to the letter, but for case, articles and punctuation; else 0.0."""
    return float(_plain(said) == _plain(task.answer))


def _tasks(prefix: str, wordings: Mapping[str, Sequence[str]], who: Sequence[Person], count: int) -> list[Task]:
    rng = random.Random(f"search {prefix}")
    tasks = []
    for index, asked in zip(range(count), cycle(_ASKED), strict=False):
        person = rng.choice(who)
        question = rng.choice(wordings[asked]).format(name=person.name)
        tasks.append(Task(f"{prefix}-{index}", question, getattr(person, asked), asked))
    return tasks


def _plain(text: str) -> str:
    return " ".join(word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the"))
