"""The process in the sandbox: it locks itself in, then runs pieces of code, one by one, in the same namespace.

The code that runs may take control of everything here, including this file's own answers: so an answer is only ever an
observation, and comparisons with expected values happen outside.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import signal
import sys
import traceback
from typing import Any


class _Output(io.TextIOBase):
    """An output stream that keeps the beginning of what is printed."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._parts: list[str] = []
        self.cut = False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        kept = text[: self._left]
        self._parts.append(kept)
        self._left -= len(kept)
        self.cut |= len(kept) < len(text)
        return len(text)

    def text(self) -> str:
        return "".join(self._parts) + ("\n[the rest is cut]" if self.cut else "")


def main() -> None:
    """Enter the sandbox, then run one piece of code per line of input, and kill what it leaves running."""
    start = json.loads(sys.argv[1])
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import jail  # pyright: ignore[reportMissingImports]

    sys.path.pop(0)
    try:
        jail.enter(start["prefixes"], start["limits"])
    except OSError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        os._exit(3)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in questions:
        question = json.loads(line)
        answer = _run(question["code"], names, start["limits"]["output_kib"] << 10)
        if os.getpid() != 1:
            os._exit(0)  # a fork made by the code must not answer
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)  # nor may it keep running
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        answer["threads"] = len(os.listdir("/proc/self/task")) - 1  # threads cannot be ended
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run(code: str, names: dict[str, Any], most: int) -> dict[str, Any]:
    output = _Output(most)
    sys.stdout = sys.stderr = output  # pyright: ignore[reportAttributeAccessIssue]
    error = None
    value = None
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                output.write(f"{value!r}\n")
    except MemoryError:
        error = "MemoryError: the code asked for more memory than it may have"
    except BaseException as raised:
        frames = [frame for frame in traceback.extract_tb(raised.__traceback__) if frame.filename == "<code>"]
        where = f" (line {frames[-1].lineno})" if frames else ""
        error = f"{type(raised).__name__}: {raised}"[:2000] + where
    try:
        value = json.loads(json.dumps(value, allow_nan=False))
        plain = len(json.dumps(value)) <= most
    except Exception:
        plain = False
    return {"output": output.text(), "error": error, "value": value if plain else None}


if __name__ == "__main__":
    main()
