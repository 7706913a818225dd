"""Notes about what happened to several people, and a question about one of them, whose answer is free text.

The reference says it in other words than the note, so no comparison of texts would find a right answer right. Held-out
tasks have causes and people that no training task has.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

_EFFECTS = (
    "came an hour late",
    "left the party early",
    "did not sleep well",
    "went back home",
    "missed the meeting",
    "called the office",
    "bought a new coat",
    "had to walk",
)
_PEOPLE = ("Anna", "Omar", "Lucy", "Peter", "Nina", "Carl", "Rosa", "Hugo", "Emma", "Ivan")
_HELD_OUT_PEOPLE = ("Tom", "Sara", "Leo", "Julia", "Max", "Clara")
_CAUSES = (
    ("the train had broken down", "a train that did not run"),
    ("the car would not start", "trouble with the car"),
    ("the dog had eaten the keys", "keys that were lost to a dog"),
    ("the road was covered with snow", "too much snow on the road"),
    ("the alarm clock was silent", "an alarm clock that did not ring"),
    ("the baby cried all night", "a baby that kept crying"),
    ("the neighbors played loud music", "loud music from the neighbors"),
    ("the kitchen was full of smoke", "smoke in the kitchen"),
    ("the letter came to the wrong house", "a letter sent to the wrong address"),
    ("the shop had closed early", "a shop that was already closed"),
    ("the soup was too salty", "soup with too much salt"),
    ("the rain had come through the roof", "a roof that let in the rain"),
    ("the phone had fallen into the sea", "a phone that was lost in the water"),
    ("the doctor had called with news", "a call from the doctor"),
    ("the elevator was stuck", "an elevator that did not move"),
    ("the bridge was closed for repairs", "repairs at the bridge"),
)
_HELD_OUT_CAUSES = (
    ("the bicycle had a flat tire", "a flat tire on the bicycle"),
    ("the lights had gone out", "a house without light"),
    ("the cat was on top of a tree", "a cat that could not come down from a tree"),
    ("the ticket was for another day", "a ticket with the wrong date"),
    ("the heating was broken", "a cold house without heating"),
    ("the teacher was ill", "the illness of the teacher"),
    ("the river had flooded the street", "water from the river in the street"),
    ("the bag was left on the bus", "a bag that was forgotten on the bus"),
)


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    answer: str
    """The reference; the agent does not see it."""

    @property
    def input(self) -> dict[str, str]:
        """What is recorded with every rollout of the task, for the judge."""
        return {"question": self.question, "answer": self.answer}


def train_tasks(step: int, count: int, *, seed: int = 0) -> list[Task]:
    """Return the tasks of a training step; the same step has the same ones."""
    draw = random.Random(f"{seed}/{step}")
    return [_task(f"train-{seed}-{step}-{number}", draw, _PEOPLE, _CAUSES) for number in range(count)]


def heldout_tasks(count: int) -> list[Task]:
    draw = random.Random("held out")
    return [_task(f"held-out-{number}", draw, _HELD_OUT_PEOPLE, _HELD_OUT_CAUSES) for number in range(count)]


def _task(name: str, draw: random.Random, people: Sequence[str], causes: Sequence[tuple[str, str]]) -> Task:
    who, what, why = draw.sample(people, 4), draw.sample(_EFFECTS, 4), draw.sample(causes, 4)
    note = " ".join(
        f"{person} {effect} because {cause}." for person, effect, (cause, _) in zip(who, what, why, strict=True)
    )
    asked = draw.randrange(4)
    return Task(name, f"{note}\nWhat was the reason for {who[asked]}?", why[asked][1])
