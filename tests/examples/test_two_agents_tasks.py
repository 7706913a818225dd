"""The team's tasks: a plan is right by what comes out of it, however it is said."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "two_agents" / "tasks.py"


@pytest.fixture(scope="module")
def tasks():
    specification = importlib.util.spec_from_file_location("two_agents_tasks", FILE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("plan", "result"),
    [
        ("subtract 13 from 40", 27),
        ("add 3 and 4", 7),
        (" multiply 5 by 6.", 30),
        ("add 3 by 4", None),
        ("subtract 3 and 4", None),
        ("multiply 5 by 6 and add 1", None),
        ("", None),
    ],
)
def test_what_comes_out_of_a_plan(tasks, plan, result):
    assert tasks.result_of(plan) == result


def test_held_out_tasks_share_neither_wordings_nor_numbers_with_training(tasks):
    train = [task for step in range(50) for task in tasks.train_tasks(step, 6)]
    held_out = tasks.heldout_tasks(48)
    numbers = [{word for task in some for word in task.plan.split() if word.isdigit()} for some in (train, held_out)]
    assert numbers[0].isdisjoint(numbers[1])
    assert tasks.heldout_tasks(48) == held_out
    assert len({task.question for task in held_out}) > 30
