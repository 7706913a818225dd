"""The other end of the pipe: this file runs in the environment's own interpreter, with only the standard library.

For each line of JSON on standard input, one line is returned; the environment's own prints go to standard error, so
they cannot be mistaken for an answer. Everything here ends with the process that started it: the kernel kills the whole
process group when the other end of ``parent_pipe`` closes, whatever the environment's code is doing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import importlib.util
import inspect
import json
import operator
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

_F_SETSIG = 10
"""From Linux's fcntl(2): which signal O_ASYNC sends."""


def main() -> None:
    """Tie this process to the one that started it, limit its memory, and answer requests until the pipe closes."""
    start = json.loads(sys.argv[1])
    _die_with(start["parent_pipe"])
    _limit(start["memory_mib"])
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # the environment's prints are not answers
    questions = os.fdopen(os.dup(0), "rb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _offer_protocol(Path(__file__).resolve().parents[2])
    sys.path[:0] = start["path"]
    _Guest(start, questions, answers).serve()


class _Guest:
    def __init__(self, start: dict[str, Any], questions: BinaryIO, answers: BinaryIO) -> None:
        self._start = start
        self._questions = questions
        self._answers = answers
        self._environment: Any = None

    def serve(self) -> None:
        for line in self._questions:
            question = json.loads(line)
            broken = False
            try:
                answer = self._answer(question)
            except MemoryError:
                answer = {"failed": "memory", "message": "MemoryError"}
            except BaseException as error:  # sys.exit() in an environment ends its attempt
                broken = True  # its state is unknown
                nonsense = type(error).__name__ == "EnvironmentNonsenseError"  # the class may not be importable here
                answer = {"failed": "nonsense" if nonsense else "raised", "message": _described(error)}
            self._say(answer)
            if broken:
                with contextlib.suppress(BaseException):
                    self._close()

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        from lightning_trainer.environments import protocol

        if "open" in question:
            self._environment = self._made()
            return {
                "version": self._version(),
                "sizes": self._sizes(),
                "holds_out": bool(getattr(self._environment, "holds_out", True)),
                "python": sys.version.split()[0],
            }
        if "close" in question:
            self._close()
            return {}
        if "reset" in question:
            if self._environment is None:
                self._environment = self._made()
            task = protocol.task_from_json(question["reset"])
            return protocol.to_json(protocol.as_observation(self._environment.reset(task)))
        action = protocol.action_from_json(question["step"])
        return protocol.to_json(protocol.as_step(self._environment.step(action)))

    def _close(self) -> None:
        environment, self._environment = self._environment, None
        close: Any = getattr(environment, "close", None)
        if callable(close):
            close()

    def _say(self, answer: dict[str, Any]) -> None:
        try:
            line = json.dumps(answer, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            line = json.dumps({"failed": "nonsense", "message": f"it is not JSON: {error}"}).encode()
        self._answers.write(line + b"\n")

    def _made(self) -> Any:
        variant = self._start["variant"]
        made = _found(self._start["module"], self._start["attribute"])
        if inspect.isfunction(made):
            from lightning_trainer.environments.reward_function import RewardFunction

            if variant is not None:
                raise TypeError(f"{self._start['attribute']} is a function, which has no variant {variant!r}")
            return RewardFunction(made, **self._start["options"])
        arguments = [] if variant is None else [variant]
        environment = made(*arguments, **self._start["options"])
        for method in ("reset", "step"):
            if not callable(getattr(environment, method, None)):
                raise TypeError(f"{self._start['attribute']} has no method {method}; an environment has reset and step")
        return environment

    def _version(self) -> str:
        from lightning_trainer.environments.loading import digest_of

        version = getattr(self._environment, "version", None)
        if version is None:
            module = sys.modules[type(self._environment).__module__]
            version = self._start["digest"] or digest_of(Path(str(module.__file__)))
        return str(version)

    def _sizes(self) -> dict[str, int] | None:
        size: Any = getattr(self._environment, "size", None)
        if not callable(size):
            return None
        return {split: operator.index(size(split)) for split in ("train", "held-out")}  # pyright: ignore


def _found(module: str, attribute: str) -> Any:
    if not module.endswith(".py"):
        return getattr(importlib.import_module(module), attribute)
    from lightning_trainer.environments.loading import module_of

    return getattr(module_of(Path(module)), attribute)


def _offer_protocol(root: Path) -> None:
    """Make ``import lightning_trainer.environments`` work without making the packages next to it importable."""
    if "lightning_trainer" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "lightning_trainer", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    package: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["lightning_trainer"] = package
    spec.loader.exec_module(package)


def _die_with(parent_pipe: int) -> None:
    """Have the kernel kill this process group when the other end of the pipe closes: a thread of ours that waited for
    this would not run while the environment's code holds the GIL."""
    if not sys.platform.startswith("linux"):
        return
    fcntl.fcntl(parent_pipe, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(parent_pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(parent_pipe, fcntl.F_SETFL, fcntl.fcntl(parent_pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # The other end may have closed before the line above ran.
    fcntl.fcntl(parent_pipe, fcntl.F_SETFL, fcntl.fcntl(parent_pipe, fcntl.F_GETFL) | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(parent_pipe, 1) == b"":
            os.killpg(0, signal.SIGKILL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no core files


def _limit(memory_mib: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform.startswith("linux"):
        # Limits private memory, not address space: libraries reserve gigabytes of address space that they never touch.
        memory = memory_mib << 20
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _described(error: BaseException) -> str:
    """Return the exception and the innermost line of the environment's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or list(frames)
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}"[:1000] + where


if __name__ == "__main__":
    main()
