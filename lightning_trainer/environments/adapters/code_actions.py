"""Code as action: Python that the model writes runs in a sandbox, and its output is the observation.

Hidden tests score it: a task in a file has ``question`` and ``tests``, a list of ``{"call": "f(3)", "expected": 9}``;
without a file, tasks are generated from a few templates with numbers drawn by seed. Expected values never enter the
sandbox: a call is evaluated there, and its value is compared here. L0 (Zhang et al. 2025, arXiv 2506.23667) acts in the
same way.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_trainer.environments.protocol import Action, Observation, Step, Task
from lightning_trainer.environments.sandbox import Sandbox, SandboxLimits

_BLOCK = re.compile(r"```[^\n`]+```|```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)
"""A block of any language, so that a block's closing fence is not taken for the opening one of another; or code within
a line, which has no groups."""
_PYTHON = ("", "py", "python", "python3")
"""The language names of the blocks that are run."""
_INSTRUCTIONS = (
    "You have a Python interpreter. Write code in a block (```python ... ```); you are told what it printed, and its "
    "variables stay. Answer without code when you are done."
)
_LONGEST_OBSERVATION = 4000
_SECONDS = 3.0
_TESTS = 5
"""How many tests may take all of ``seconds`` each, by default."""
_FRESH_S = 10.0
"""Time for starting fresh interpreters on a busy machine."""

Made = tuple[str, Callable[[int], Any]]
_KINDS: Mapping[str, Callable[[int, int], Made]] = {
    "line": lambda a, b: (f"f(n) that returns {a} times n plus {b}", lambda n: a * n + b),
    "multiples": lambda a, b: (
        f"f(n) that returns the sum of the whole numbers from 1 to n that {a} divides",
        lambda n: sum(i for i in range(1, n + 1) if i % a == 0),
    ),
    "remainder": lambda a, b: (f"f(n) that returns the remainder of n times {b} by {a}", lambda n: n * b % a),
    "digits": lambda a, b: (
        f"f(n) that returns the sum of the digits of n plus {b}",
        lambda n: sum(map(int, str(n))) + b,
    ),
    "larger": lambda a, b: (f"f(n) that returns n or {a * b}, whichever is larger", lambda n: max(n, a * b)),
}


class CodeActions:
    """An environment in which the model acts by writing Python.

    Args:
        turns: pieces of code that an attempt may run; after the last one, the tests run.
        seconds, memory_mib: limits on one piece of code, and on one test.
        tests_seconds: limit on all tests of a task together, by default five times ``seconds``. Tests that have not
            ended by then count as not passed.
    """

    version = "3"

    def __init__(
        self,
        *,
        turns: int = 4,
        seconds: float = _SECONDS,
        memory_mib: int = 256,
        tests_seconds: float | None = None,
    ) -> None:
        self._turns = turns
        self._tests_seconds = _TESTS * seconds if tests_seconds is None else tests_seconds
        self._sandbox = Sandbox(SandboxLimits(seconds=seconds, memory_mib=memory_mib))
        self._used = False

    def reset(self, task: Task) -> Observation:
        if self._used:  # nothing may remain from the last attempt
            self._sandbox.restart()
        self._used = False
        self._left = self._turns
        self._code: list[str] = []
        """The code that made the interpreter's variables."""
        if task.fields:
            question, self._tests = str(task.fields["question"]), _checked(task.fields.get("tests"))
        else:
            question, self._tests = task.of_split(_made(task.random()), lambda made: made[0])
        return Observation(question, instructions=_INSTRUCTIONS)

    def step(self, action: Action) -> Step:
        code = code_in(action.text)
        if not code:
            return self._scored("There is no code." if self._left == self._turns else "")
        self._used = True
        self._left -= 1
        ran = self._sandbox.run(code)
        self._code = [] if ran.lost else [*self._code, code]
        said = f"{ran.output}{f'error: {ran.error}' if ran.error else ''}".strip() or "(it printed nothing)"
        said = said[:_LONGEST_OBSERVATION]
        return self._scored(said) if self._left == 0 else Step(Observation(said), 0.0, False)

    def close(self) -> None:
        self._sandbox.close()

    def _scored(self, said: str) -> Step:
        self._used = True
        count = len(self._tests)
        passed, ended = self._tested()
        late = f"; {count - ended} had not ended when the time of all tests ({self._tests_seconds:g} s) was over"
        result = f"{passed} of {count} tests passed{late if ended < count else ''}."
        return Step(Observation(f"{said}\n{result}".strip()), passed / count, True)

    def _tested(self) -> tuple[int, int]:
        """Return how many tests passed, and how many ended in time.

        A test that loses the interpreter must not fail the ones after it: the attempt's code is run again for them.
        """
        give_up = time.monotonic() + self._tests_seconds
        passed, lost = 0, False
        for ended, test in enumerate(self._tests):
            ran = None
            for code in (*(self._code if lost else ()), str(test["call"])):
                if (left := give_up - time.monotonic()) <= 0:
                    return passed, ended
                ran = self._sandbox.run(code, left)
                if ran.lost:
                    break
            assert ran is not None
            lost = ran.lost
            if lost and time.monotonic() >= give_up:
                return passed, ended
            passed += ran.error is None and _same(ran.value, test["expected"])
        return passed, len(self._tests)


def code_in(answer: str) -> str:
    """Return the Python code in an answer's blocks; empty if there is none."""
    blocks = _BLOCK.findall(answer)
    return "\n".join(body for name, body in blocks if body and name.strip().lower() in _PYTHON).strip()


def step_timeout_s(options: Mapping[str, Any]) -> float:
    """Return how long a step may take with these options: the code, its tests, and fresh interpreters."""
    seconds, tests_seconds = options.get("seconds", _SECONDS), options.get("tests_seconds")
    if not isinstance(seconds, int | float) or not isinstance(tests_seconds, int | float | None):
        return 0.0  # the environment itself refuses them
    return seconds + (_TESTS * seconds if tests_seconds is None else tests_seconds) + _FRESH_S


def _made(chance: random.Random) -> Any:
    while True:
        kind = chance.choice(sorted(_KINDS))
        words, right = _KINDS[kind](chance.randint(2, 19), chance.randint(2, 19))
        tests = [{"call": f"f({n})", "expected": right(n)} for n in (0, *chance.sample(range(1, 400), 4))]
        yield f"Write a function {words}.", tests


def _checked(tests: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(tests, list) or not tests or not all("call" in test and "expected" in test for test in tests):
        raise ValueError('a task needs tests, as in [{"call": "f(3)", "expected": 9}]')
    return tests


def _same(value: object, expected: object) -> bool:
    """Compare as JSON does: ``1`` is not ``true``, and ``0.1 + 0.2`` is ``0.3``, also within lists and objects."""
    if type(value) is float or type(expected) is float:
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, expected))
        return numbers and _close(value, expected)
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_same(value[key], expected[key]) for key in expected)
    return value == expected


def _close(value: Any, expected: Any) -> bool:
    try:
        return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-9)
    except OverflowError:  # an integer too large for a float
        return False
