"""Notes about what happened to several people, and a question about one of them, whose answer is free text.

The reference uses other words than the note, so no comparison of texts would recognize a right answer. Held-out tasks
have causes and people that no training task has.
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
    ("the train had broken down", "the train broke down"),
    ("the car would not start", "the car did not start"),
    ("the dog had eaten the keys", "the dog ate the keys"),
    ("the road was covered with snow", "snow covered the road"),
    ("the alarm clock was silent", "the alarm clock did not ring"),
    ("the baby had cried all night", "the baby cried the whole night"),
    ("the neighbors had played loud music", "the neighbors played music loudly"),
    ("the kitchen was full of smoke", "smoke filled the kitchen"),
    ("the letter had come to the wrong house", "the letter came to another house"),
    ("the shop had closed early", "the shop closed too early"),
    ("the soup was too salty", "the soup had too much salt"),
    ("the rain had come through the roof", "the rain came in by the roof"),
    ("the phone had fallen into the sea", "the phone fell into the water"),
    ("the doctor had called with news", "the doctor called with some news"),
    ("the elevator was stuck", "the elevator did not move"),
    ("the bridge was closed for repairs", "the bridge was being repaired"),
)
_HELD_OUT_CAUSES = (
    ("the bicycle had lost a wheel", "the bicycle lost one wheel"),
    ("the lights had gone out", "the lights went out"),
    ("the cat had climbed a tree", "the cat climbed up a tree"),
    ("the ticket was for another day", "the ticket had the wrong date"),
    ("the heating was broken", "the heating did not work"),
    ("the teacher had become ill", "the teacher became very ill"),
    ("the river had flooded the street", "the river was flooding the street"),
    ("the bag was left on the bus", "the bag stayed on the bus"),
)


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    answer: str
    """The reference; the agent does not see it."""
    cause: str
    """The cause in the note's words; nothing in training uses it."""

    @property
    def input(self) -> dict[str, str]:
        """Return what is recorded with every rollout of the task, for the judge."""
        return {"question": self.question, "answer": self.answer}


def train_tasks(step: int, count: int, *, seed: int = 0) -> list[Task]:
    """Return the tasks of a training step; the same step always has the same ones."""
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
    cause, answer = why[asked]
    return Task(name, f"{note}\n{who[asked]} {what[asked]}. Why?", answer, cause)
