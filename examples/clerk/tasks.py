"""The clerk's tasks: letters about orders, and the town that each comes from.

    python examples/clerk/tasks.py examples/clerk --seed 0

writes the three files of tasks next to this one: those to learn from, those to compare texts at, and those for the end.
The last ones name other people, towns and orders than the others.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

WORDINGS = (
    "Hello, this is {person} from {town}. My parcel {number} has not come yet.",
    "Where is order {number}? It should have been in {town} on Monday. Regards, {person}",
    "Good morning! I live in {town} and the box of order {number} was open when it came. {person}",
    "I moved to {town}. Please send order {number} there. Thanks, {person}",
    "Order {number} came to {town} without its lamp. {person}",
    "My name is {person}. Is {number} still on its way to {town}?",
)
QUESTION = "{letter}\n\nIn which town is the customer?"


@dataclass(frozen=True, slots=True)
class World:
    """The people, towns and order numbers that letters name."""

    people: Sequence[str]
    towns: Sequence[str]
    numbers: range


KNOWN = World(
    ("Ana Kelberg", "Otto Vance", "Mira Holt", "Juri Brandt", "Lena Ford", "Karl Moss", "Ida Stone", "Paul Reyes"),
    ("Oslo", "Lyon", "Bern", "Porto", "Leeds", "Turin", "Krakow", "Ghent", "Cork", "Bergen", "Basel", "Dublin"),
    range(1000, 6000),
)
HELD_OUT = World(
    ("Nora Lind", "Hugo Marlow", "Eva Sommer", "Max Winter", "Uma Herbst", "Ben Castle"),
    ("Paris", "Vienna", "Madrid", "Hamburg", "Geneva", "Florence", "Bristol", "Antwerp", "Prague"),
    range(6000, 10_000),
)
FILES = {"train": 40, "validation": 24, "heldout": 48}
"""How many tasks each file has."""


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    question: str
    town: str
    """The clerk does not see it."""


def tasks_of(seed: int) -> dict[str, list[Task]]:
    """Return the tasks of every file; the same seed gives the same tasks, and no order is in two of them."""
    known, held_out = random.Random(f"{seed}/known"), random.Random(f"{seed}/held out")
    counts = [FILES["train"], FILES["validation"]]
    numbers = known.sample(KNOWN.numbers, sum(counts))
    return {
        "train": _made("train", known, KNOWN, numbers[: counts[0]]),
        "validation": _made("validation", known, KNOWN, numbers[counts[0] :]),
        "heldout": _made("heldout", held_out, HELD_OUT, held_out.sample(HELD_OUT.numbers, FILES["heldout"])),
    }


def _made(name: str, draw: random.Random, world: World, numbers: Sequence[int]) -> list[Task]:
    made = []
    for place, number in enumerate(numbers):
        person, town = draw.choice(world.people), draw.choice(world.towns)
        letter = WORDINGS[place % len(WORDINGS)].format(person=person, town=town, number=number)
        made.append(Task(f"{name}-{place}", QUESTION.format(letter=letter), town))
    return made


def lines(tasks: Sequence[Task]) -> str:
    return "".join(f"{json.dumps(asdict(task))}\n" for task in tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, tasks in tasks_of(options.seed).items():
        (options.folder / f"{name}.jsonl").write_text(lines(tasks), encoding="utf-8")


if __name__ == "__main__":
    main()
