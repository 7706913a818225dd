"""examples/code: what solves a problem passes its hidden tests, in the real sandbox; held-out ones are new."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lightning_trainer.environments.sandbox import Sandbox, SandboxLimits

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[2] / "examples" / "code"
SOLUTIONS = {
    "line": "n * {a} + {b}",
    "remainder": "n % {a}",
    "larger": "max(n, {a})",
    "above": "n > {a}",
    "length": "len(s) + {a}",
    "repeated": "s * {a}",
    "start": "s[:{a}]",
    "total": "sum(xs) + {a}",
    "most": "max(xs) * {a}",
    "many": "len(xs) * {a}",
}


def loaded(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"code_example_{name}", FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tasks() -> ModuleType:
    return loaded("tasks")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


def solution(task) -> str:
    argument, wording = re.findall(r"f\((\w+)\) returns (.+)\.", task.question)[0]
    numbers = re.findall(r"\d+", wording)
    a, b = (
        (numbers[1], numbers[0])
        if wording.startswith(numbers[0] + " more than " + numbers[-1])
        else (
            numbers[0],
            numbers[-1],
        )
    )
    return f"def f({argument}): return {SOLUTIONS[task.family].format(a=a, b=b)}"


def test_a_solution_passes_all_tests_and_a_wrong_one_does_not(tasks, sandbox) -> None:
    problems = [*tasks.train_tasks(1, 12), *tasks.heldout_tasks(12)]
    assert {task.family for task in problems} == set(SOLUTIONS) == set(tasks.FAMILIES)
    for task in problems:
        assert tasks.score(solution(task), task, sandbox) == 1.0, task
        # What only hands back its argument is never right.
        assert not all(eval(call[1:]) == right for call, right in task.tests), task


def test_nothing_is_left_of_the_code_before_and_bad_code_is_worth_nothing(tasks) -> None:
    (task, *_) = tasks.heldout_tasks(1)
    with Sandbox(SandboxLimits(seconds=1)) as hurried:
        assert tasks.score(solution(task), task, hurried) == 1.0
        for code in ("", "g = 1", "def f(", "while True: pass", "import socket; socket.socket()"):
            assert tasks.score(code, task, hurried) == 0.0


def test_a_value_of_another_type_is_wrong(tasks, sandbox) -> None:
    task = tasks.Task("t", "f(n) returns whether n is more than 1.", (("f(2)", True),), "above")
    assert tasks.score("def f(n): return n > 1", task, sandbox) == 1.0
    assert tasks.score("def f(n): return 1", task, sandbox) == 0.0


def test_held_out_problems_share_neither_wordings_nor_numbers_with_training(tasks) -> None:
    train = [task for step in range(60) for task in tasks.train_tasks(step, 8)]
    held_out = tasks.heldout_tasks(72)
    assert tasks.heldout_tasks(72) == held_out
    numbers = [{word for task in some for word in re.findall(r"\d+", task.question)} for some in (train, held_out)]
    assert numbers[0].isdisjoint(numbers[1])
    wordings = [{re.sub(r"\d+", "N", task.question) for task in some} for some in (train, held_out)]
    assert wordings[0].isdisjoint(wordings[1])


def test_what_is_shown_is_code_that_does_what_it_says_with_numbers_of_no_problem(sandbox) -> None:
    shown = loaded("agent").EXAMPLES
    for problem, code in shown:
        sandbox.restart()
        assert sandbox.run(code).error is None
        assert all(int(number) >= 50 for number in re.findall(r"\d+", problem))
