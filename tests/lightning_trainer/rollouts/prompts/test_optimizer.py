"""What a search refuses before it makes an attempt, and what a program or a Ray task of it is given."""

import asyncio
import json
import os
import pickle
import sys
from contextvars import Context
from types import ModuleType

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.prompts.prompt import serving_prompts
from lightning_instrumentation.prompts.version import PROMPTS, PromptVersion

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Command, PromptOptimizer, on_ray
from lightning_trainer.rollouts.awaiting import result_of
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


class _Remote:
    """Stands in for a Ray task: it gets pickled arguments and nothing of the context here, as in another process."""

    def __init__(self, function) -> None:
        self._function = function

    def options(self, **_: object):
        return self

    async def remote(self, *arguments):
        arrived = pickle.loads(pickle.dumps(arguments))
        return await asyncio.get_running_loop().run_in_executor(None, Context().run, lambda: self._function(*arrived))


def is_tried(task) -> float:
    return float(lt.prompt("clerk", "the program's own") == "tried")


def test_an_attempt_on_ray_has_the_texts(monkeypatch, tmp_path):
    """Before: a search spent its attempts on the program's own text."""
    ray, errors = ModuleType("ray"), ModuleType("ray.exceptions")
    monkeypatch.setattr(ray, "remote", _Remote, raising=False)
    for name in ("RayError", "RayTaskError"):
        monkeypatch.setattr(errors, name, type(name, (Exception,), {}), raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    monkeypatch.setattr(on_ray, "_FLUSH_S", 0.0)
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    lt.shutdown(0)
    try:
        with serving_prompts({"clerk": PromptVersion(7, "tried")}):
            assert result_of(on_ray.OnRay(is_tried, endpoint=NOWHERE)(TASKS[0])) == 1.0
    finally:
        lt.shutdown(0)
