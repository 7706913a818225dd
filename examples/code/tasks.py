"""Small Python problems in endless supply, each with hidden tests; a held-out one is new in wording and in numbers.

A number belongs to one side: training has even ones, held-out problems have odd ones. What a function is worth is
decided by calls of it that the model never sees.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_trainer.environments.sandbox import Sandbox

_WORDS = ("apple", "river", "stone", "tiger", "cloud", "amber", "piano", "noon", "level", "zebra")


@dataclass(frozen=True)
class Family:
    """Problems that one expression solves, told in several ways."""

    solve: Callable[[Any, int, int], Any]
    """What the function returns for its argument, with the problem's two numbers."""
    kind: type
    """Of the argument: a number, a text, or a list of numbers."""
    train: tuple[str, ...]
    heldout: tuple[str, ...]


FAMILIES: Mapping[str, Family] = {
    "line": Family(
        lambda n, a, b: n * a + b,
        int,
        ("n times {a}, plus {b}", "{b} more than {a} times n"),
        ("{a} times n plus {b}",),
    ),
    "remainder": Family(
        lambda n, a, b: n % a,
        int,
        ("the remainder of n by {a}", "what is left of n after division by {a}"),
        ("the remainder when n is divided by {a}",),
    ),
    "larger": Family(
        lambda n, a, b: max(n, a),
        int,
        ("the larger of n and {a}", "n, but at least {a}"),
        ("the maximum of n and {a}",),
    ),
    "above": Family(
        lambda n, a, b: n > a,
        int,
        ("whether n is more than {a}", "whether n is above {a}"),
        ("whether n is greater than {a}",),
    ),
    "length": Family(
        lambda s, a, b: len(s) + a,
        str,
        ("the number of letters of s, plus {a}", "{a} more than the letters of s"),
        ("the length of s plus {a}",),
    ),
    "repeated": Family(
        lambda s, a, b: s * a, str, ("s {a} times in a row", "{a} copies of s joined"), ("s repeated {a} times",)
    ),
    "start": Family(
        lambda s, a, b: s[:a],
        str,
        ("the first {a} letters of s", "where s begins, {a} letters"),
        ("the start of s, {a} letters long",),
    ),
    "total": Family(
        lambda xs, a, b: sum(xs) + a,
        list,
        ("the sum of xs, plus {a}", "{a} more than all of xs together"),
        ("the total of xs plus {a}",),
    ),
    "most": Family(
        lambda xs, a, b: max(xs) * a,
        list,
        ("{a} times the largest of xs", "the maximum of xs times {a}"),
        ("the biggest of xs, times {a}",),
    ),
    "many": Family(
        lambda xs, a, b: len(xs) * a,
        list,
        ("{a} times the number of elements of xs", "how many xs there are, times {a}"),
        ("the length of xs, times {a}",),
    ),
}
_ARGUMENTS = {int: "n", str: "s", list: "xs"}


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    tests: tuple[tuple[str, Any], ...]
    """Calls of the function, and what they have to return; the model sees neither."""
    family: str


def train_tasks(step: int, count: int) -> list[Task]:
    """Return the tasks of a step; always the same ones."""
    return _tasks(f"step-{step}", count, held_out=False)


def heldout_tasks(count: int) -> list[Task]:
    return _tasks("heldout", count, held_out=True)


def score(code: str, task: Task, sandbox: Sandbox) -> float:
    """Return the share of the tests that pass: each call is evaluated in the sandbox, its value is compared here."""
    sandbox.restart()  # nothing of the last attempt is left
    if sandbox.run(code).error is not None:
        return 0.0
    values = [sandbox.run(call).value for call, _ in task.tests]
    expected = [right for _, right in task.tests]
    # True is 1 and 2.0 is 2 for Python, and not for us.
    passed = sum(type(value) is type(right) and value == right for value, right in zip(values, expected, strict=True))
    return passed / len(expected)


def _tasks(prefix: str, count: int, *, held_out: bool) -> list[Task]:
    rng = random.Random(f"code {prefix}")
    names = rng.sample(sorted(FAMILIES), len(FAMILIES))
    tasks = []
    for index in range(count):
        name = names[index % len(names)]
        family = FAMILIES[name]
        a, b = (2 * rng.randint(1, 9) + held_out for _ in range(2))
        argument = _ARGUMENTS[family.kind]
        wording = rng.choice(family.heldout if held_out else family.train).format(a=a, b=b)
        tests = tuple((f"f({value!r})", family.solve(value, a, b)) for value in _values(family.kind, a, rng))
        tasks.append(Task(f"{prefix}-{index}", f"f({argument}) returns {wording}.", tests, name))
    return tasks


def _values(kind: type, a: int, rng: random.Random) -> Sequence[Any]:
    if kind is int:
        return [0, a, a + 1, *rng.sample(range(2, 400), 3)]
    if kind is str:
        return ["".join(rng.sample(_WORDS, 5)) for _ in range(3)]  # longer than any number of letters asked for
    return [[rng.randint(-50, 50) for _ in range(size)] for size in (1, 3, 6)]
