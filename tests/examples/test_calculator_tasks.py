"""The quickstart's tasks: verifiable, balanced, and held-out means new wordings, names, things and numbers."""

import dataclasses
import importlib.util
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"calculator_{name}", EXAMPLE / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


tasks = load("tasks")
TRAIN = [task for seed in range(200) for task in tasks.train_tasks(seed, 10)]
HELD_OUT = tasks.heldout_tasks(200)


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others():
    assert tasks.train_tasks(3, 8) == tasks.train_tasks(3, 8)
    assert [task.question for task in tasks.train_tasks(3, 8)] != [task.question for task in tasks.train_tasks(4, 8)]
    assert tasks.heldout_tasks(96) == HELD_OUT[:96]


def test_held_out_tasks_share_no_wording_and_no_number_with_training():
    assert not {task.wording for task in TRAIN} & {task.wording for task in HELD_OUT}
    assert not {n for task in TRAIN for n in task.numbers} & {n for task in HELD_OUT for n in task.numbers}
    assert not {task.question for task in TRAIN} & {task.question for task in HELD_OUT}
    assert {task.family for task in TRAIN} == {task.family for task in HELD_OUT}


def test_ids_are_unique_within_a_run():
    assert len({task.id for task in TRAIN}) == len(TRAIN)
    assert len({task.id for task in HELD_OUT}) == len(HELD_OUT)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The answer is 103.", 1.0),
        ("103", 1.0),
        ("23 * 5 = 115, minus 12 is 103.0", 1.0),
        ("The answer is 1,03", 1.0),
        ("The answer is 104.", 0.0),
        ("103 or 104", 0.0),
        ("", 0.0),
        ("no idea", 0.0),
        ('<tool_call>\n{"name": "calculator"}\n</tool_call> 103', 0.0),
    ],
)
def test_only_the_last_number_of_the_final_answer_counts(answer, expected):
    task = dataclasses.replace(HELD_OUT[0], answer=Fraction(103))
    assert tasks.score(answer, task) == expected


def test_no_number_of_the_question_is_its_answer():
    for task in TRAIN + HELD_OUT:
        assert len(set(task.numbers)) == len(task.numbers)
        assert task.answer not in task.numbers


def test_the_answer_is_what_the_expression_gives():
    for task in TRAIN[:50] + HELD_OUT[:50]:
        family = next(family for family in tasks.FAMILIES if family.name == task.family)
        quantities = dict(zip(family.ranges, task.numbers, strict=True))
        assert task.answer == eval(family.expression, {}, quantities)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12 + 30", "42"),
        ("9 * 8 - 5", "67"),
        ("-(7 - 9) / 4", "0.5"),
        ("7 / 0", "error"),
        ("2 ** 9", "error"),
        ("1e308 * 10", "error"),
        ("__import__('os')", "error"),
        ("(1 + 2", "error"),
        ("1 + " * 40 + "1", "error"),
    ],
)
def test_the_calculator_works_out_arithmetic_and_nothing_else(expression, result, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    assert load("agent").calculator.invoke({"expression": expression}) == result


def test_a_step_names_its_tasks_and_their_temperature_which_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("agent", "tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    train = load("train")
    for name in ("agent", "tasks"):
        del sys.modules[name]  # other examples have modules of these names
    rising = [train.temperature_at(step) for step in range(1, 27)]
    assert (rising[0], rising[15], rising[-1]) == (0.6, 1.0, 1.0)
    assert rising == sorted(rising)
    assert train.tasks_of(8, 1, 10) == train.tasks_of(8, 1, 10), "an interrupted run goes on with the same ones"
    assert {one.id for one in train.tasks_of(8, 1, 10)}.isdisjoint(one.id for one in train.tasks_of(9, 1, 10))
    assert {one.temperature for one in train.tasks_of(8, 1, 10)} == {train.temperature_at(8)}
