"""What of an answer is code that is run; what it does there is in ``test_sandbox.py``."""

import pytest

from lightning_trainer.environments.adapters.code_actions import code_in


@pytest.mark.parametrize("info", ["", "py", "python", "Python", "python3", "PYTHON3 ", " python", "python\r"])
def test_a_block_of_python_is_run_however_it_is_called_and_the_prose_around_it_is_not(info):
    assert code_in(f"First:\n```{info}\nx = 1\n```\nThat is\n```{info}\nprint(x)\n```\nall.") == "x = 1\n\nprint(x)"


@pytest.mark.parametrize("info", ["text", "json", "bash", "javascript", "python output"])
def test_a_block_of_anything_else_is_no_code_and_neither_is_what_follows_it(info):
    assert code_in(f"It printed\n```{info}\n9\n```\nso I am done.") == ""
    assert code_in(f"```{info}\n9\n```\nNow:\n```python\nf(3)\n```\nDone.") == "f(3)"


def test_a_block_that_does_not_end_is_run_to_the_end_of_the_answer():
    assert code_in("Now: ```python\nf(3)\n") == "f(3)"


def test_marks_within_a_line_are_no_block_and_hide_none():
    assert code_in("I write ```x = 1``` there\nand ```python print(1)```\nhere.") == ""
    assert code_in("I write ```x = 1``` first:\n```python\nf(3)\n```\nDone.") == "f(3)"


def test_an_answer_without_a_block_has_no_code():
    assert code_in("I am done.") == ""
