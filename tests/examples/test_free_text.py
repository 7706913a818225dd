"""What examples/free_text asks can be answered, and not by copying: references are worded otherwise than the notes."""

import runpy
from pathlib import Path

from lightning_trainer.config.file import load_config

FOLDER = Path(__file__).parents[2] / "examples" / "free_text"
TASKS = runpy.run_path(str(FOLDER / "tasks.py"))


def test_tasks_of_a_step_are_the_same_every_time_and_of_another_step_others() -> None:
    first, again, second = (TASKS["train_tasks"](step, 6) for step in (1, 1, 2))
    assert first == again
    assert {task.id for task in first}.isdisjoint(task.id for task in second)


def test_no_reference_stands_in_its_note_and_held_out_ones_are_in_no_training_task() -> None:
    held_out = TASKS["heldout_tasks"](64)
    trained = [task for step in range(50) for task in TASKS["train_tasks"](step, 6)]
    assert not any(task.answer in task.question for task in (*held_out, *trained))
    assert {task.answer for task in held_out}.isdisjoint(task.answer for task in trained)
    assert len({task.answer for task in held_out}) > 4


def test_the_judge_reads_the_field_that_the_tasks_have_and_the_agent_does_not_see_it() -> None:
    config = load_config(FOLDER / "lightning.toml")
    (judge,) = config.judge
    (task, *_) = TASKS["heldout_tasks"](1)
    assert task.cause in task.question
    assert task.input == {"question": task.question, judge.model_dump()["reference"]: task.answer}
    assert set(config.only_policy.reward_weights) == {judge.name}
