"""Questions of three kinds; held-out ones have wordings and numbers that training never sees."""

import operator
import random
import re
from dataclasses import dataclass

_TRAIN = (
    ("{n} had {a} shells and gave {b} away. How many shells are left?", "subtract {b} from {a}"),
    ("Of {a} seats, {b} are taken. How many seats are free?", "subtract {b} from {a}"),
    ("{n} has {a} coins and gets {b} more. How many coins does {n} have?", "add {a} and {b}"),
    ("There are {a} boys and {b} girls. How many children are there?", "add {a} and {b}"),
    ("A hall has {a} rows of {b} chairs. How many chairs are there?", "multiply {a} by {b}"),
    ("A ticket costs {a} dollars. How much do {b} tickets cost?", "multiply {a} by {b}"),
)
_HELDOUT = (
    ("A jar holds {a} sweets and {n} takes out {b}. How many sweets remain?", "subtract {b} from {a}"),
    ("{n} read {a} pages on Monday and {b} on Tuesday. How many pages is that?", "add {a} and {b}"),
    ("A crate holds {a} bottles. How many bottles do {b} crates hold?", "multiply {a} by {b}"),
)
_RESULTS = {"subtract": lambda b, a: a - b, "add": operator.add, "multiply": operator.mul}
"""The results for the two numbers in the order in which the plan says them."""
_PLAN = re.compile(r"(?:(subtract) (\d{1,6}) from|(add) (\d{1,6}) and|(multiply) (\d{1,6}) by) (\d{1,6})")


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    plan: str
    """What a good planner says; other words may be as good."""
    answer: int


def train_tasks(step: int, count: int) -> list[Task]:
    """Return the tasks of a step; always the same ones."""
    return _tasks(f"step-{step}", _TRAIN, ("Tom", "Ana", "Mia", "Leo"), random.Random(f"train {step}"), count, 0)


def heldout_tasks(count: int) -> list[Task]:
    return _tasks("heldout", _HELDOUT, ("Paul", "Nora", "Omar"), random.Random("heldout"), count, 1)


def result_of(plan: str) -> int | None:
    """Return the result of following a plan; None if the text is not a plan."""
    match = _PLAN.fullmatch(plan.strip().rstrip("."))
    if match is None:
        return None
    name, first, second = (*filter(None, match.groups()),)
    return _RESULTS[name](int(first), int(second))


def _tasks(
    prefix: str, kinds: tuple[tuple[str, str], ...], names: tuple[str, ...], rng: random.Random, count: int, parity: int
) -> list[Task]:
    tasks = []
    for index in range(count):
        question, plan = kinds[(index + rng.randrange(len(kinds))) % len(kinds)]
        # Numbers of one parity are for training, those of the other are held out.
        a, b = (2 * rng.randrange(20, 45) + parity, 2 * rng.randrange(3, 19) + parity)
        filled = {"a": a, "b": b, "n": rng.choice(names)}
        said = plan.format(**filled)
        answer = result_of(said)
        assert answer is not None
        tasks.append(Task(f"{prefix}-{index}", question.format(**filled), said, answer))
    return tasks
