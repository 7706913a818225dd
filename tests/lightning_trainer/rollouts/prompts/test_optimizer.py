"""What a search refuses before it makes an attempt, and what a program of it is given."""

import json
import os
import sys

import pytest
from lightning_instrumentation.prompts.prompt import serving_prompts
from lightning_instrumentation.prompts.version import PROMPTS, PromptVersion

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Command, PromptOptimizer
from lightning_trainer.rollouts.command import CommandError
from lightning_trainer.rollouts.task_file import FileTask

NOWHERE = "http://127.0.0.1:9"
TASKS = [{"id": str(number)} for number in range(8)]


def optimizer(prompts="clerk") -> PromptOptimizer:
    return PromptOptimizer(prompts, lambda task: 1.0, endpoint=NOWHERE)


@pytest.mark.parametrize("names", [[], ["clerk", "clerk"]])
def test_prompts_are_named_once(names):
    with pytest.raises(LightningError, match="name at least one, and each once"):
        optimizer(names)


@pytest.mark.parametrize(
    ("tasks", "options", "sentence"),
    [
        (TASKS[:1], {"attempts": 100}, "there are 1 tasks to learn from, 0 to compare at"),
        ([], {"attempts": 100}, "0 to compare at"),
        (TASKS, {"attempts": 100, "minibatch": 0}, "minibatch is 0"),
        (TASKS, {"attempts": 13}, "attempts is 13; 14 are needed"),
        ([*TASKS, {"id": "3"}], {"attempts": 100}, "2 tasks are called '3'"),
        (TASKS, {"attempts": 100, "validation": [{"id": "a"}, {"id": "a"}]}, "2 tasks are called 'a'"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_tried(tasks, options, sentence):
    with pytest.raises(LightningError, match=sentence):
        optimizer().optimize(tasks, **options)


def test_a_program_finds_the_texts_in_its_environment():
    given = {"clerk": PromptVersion(7, "ein Gruß")}
    said = Command([sys.executable, "-c", f"import os; print(os.environ[{PROMPTS!r}])"], endpoint=NOWHERE)
    with serving_prompts(given):
        line = said.run(FileTask("1", {"id": "1"}))
    assert json.loads(line) == {"clerk": {"version": 7, "text": "ein Gruß"}}
    assert PROMPTS not in os.environ


def test_texts_that_no_environment_holds_are_one_sentence():
    given = {name: PromptVersion(1, "x" * 65_000) for name in ("clerk", "writer")}
    command = Command([sys.executable, "-c", "print(1)"], endpoint=NOWHERE)
    with (
        serving_prompts(given),
        pytest.raises(CommandError, match=r"clerk, writer take .* make the attempt a function"),
    ):
        command(FileTask("1", {"id": "1"}))
