"""``program``: one of the user's commands or Python functions, in its own process.

It gets one JSON object on standard input and prints the score as JSON on the last line of its output: ``0.5``,
``{"score": 0.5, "reason": "..."}``, or ``null`` if there is none; for a whole group ``{"scores": {ATTEMPT: 0.5}}``,
for the agents of an attempt ``{"scores": {AGENT: 0.5}}``, for its calls ``{"scores": [0.5]}``. It always ends: after
``timeout_s`` its process group is killed, and the memory of each of its processes is limited.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

import psutil
from lightning_instrumentation.reward import LARGEST_REWARD

from lightning_trainer.config.judges import ProgramConfig
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.attempts import JudgedAttempt, Turn
from lightning_trainer.judges.judge import Verdict, agents_to_score, turns_to_score
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.rendering import message_text

_MOST_OUTPUT = 1 << 20
"""Limit in bytes on the program's output and on its standard error; a program that writes more is killed."""
_LOOK_S = 0.02
_LIMITED = 'ulimit -v "$0" 2>/dev/null; exec "$@"'
"""Not every system can limit memory; if this one cannot, the program runs without a limit."""
_RUNNER = "lightning_trainer.judges.kinds.function_runner"


class ProgramJudge:
    """Scores with one of the user's programs."""

    cached = False
    """The program may have changed."""

    def __init__(self, config: ProgramConfig) -> None:
        self.config = config
        self._places = asyncio.Semaphore(config.concurrency)

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        told = [as_json(attempt) for attempt in attempts]
        return json.dumps({"attempts": told} if self.config.whole_group else told[0], default=str)

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        async with self._places:
            line = await self._run(question)
        said = _said(line)
        if self.config.whole_group:
            scores = _scores(
                said, line, "of a whole group", "attempt ids", [one.attempt.attempt_id for one in attempts]
            )
            return [_verdict(score, line, place=place) for place, score in enumerate(scores.values())]
        if self.config.per == "agent":
            scores = _scores(said, line, "of agents", "agents", agents_to_score(attempts[0]))
            return [_verdict(score, line, agent=agent) for agent, score in scores.items()]
        if self.config.per == "call":
            scores = _scores_of_calls(said, line, len(turns_to_score(attempts[0])))
            return [_verdict(score, line, call=call) for call, score in enumerate(scores)]
        return [_verdict(said, line)]

    async def close(self) -> None: ...

    async def _run(self, question: str) -> str:
        """Return the last line of the program's output; none of its processes survives."""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            stdin.write(question.encode())
            stdin.seek(0)
            # With files instead of pipes, a process that it leaves behind cannot block us.
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - starting it is quick; waiting for its end does not block
                    ["/bin/sh", "-c", _LIMITED, str(self.config.memory_mib * 1024), *self._command],
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    cwd=self.config.working_dir,
                    start_new_session=True,
                )
            except OSError as error:
                raise JudgeError(f"it cannot be run in {self.config.working_dir}: {error.strerror}") from error
            try:
                await self._ended(process, out, err)
            finally:
                _kill(process)
            if process.returncode:
                said = _last_line(err) or "it said nothing"
                raise JudgeError(f"it ended with exit status {process.returncode}: {said}")
            return _last_line(out)

    async def _ended(self, process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes]) -> None:
        give_up = time.monotonic() + self.config.timeout_s
        while process.poll() is None:
            if time.monotonic() > give_up:
                raise JudgeError(f"it did not end within timeout_s = {self.config.timeout_s:g} and was killed")
            if any(os.fstat(file.fileno()).st_size > _MOST_OUTPUT for file in (out, err)):
                raise JudgeError(f"it wrote more than {_MOST_OUTPUT:,} bytes and was killed")
            await asyncio.sleep(_LOOK_S)

    @property
    def _command(self) -> Sequence[str]:
        if self.config.command is not None:
            return self.config.command
        assert self.config.function is not None
        return (sys.executable, "-m", _RUNNER, self.config.function)


def as_json(one: JudgedAttempt) -> dict[str, Any]:
    """Return an attempt in the form that programs get."""
    attempt = one.attempt
    answered = [turn.answer for turn in one.turns if turn.answer is not None]
    return {
        "attempt_id": attempt.attempt_id,
        "rollout_id": attempt.rollout_id,
        "task_id": attempt.task_id,
        "group_id": attempt.group_id,
        "state": attempt.state.value,
        "error": attempt.error,
        "input": _input(one.asked),
        "answer": _words(answered[-1])["content"] if answered else None,
        "calls": [_call(turn) for turn in one.turns],
        "rewards": dict(one.rewards or {}),
    }


def _input(asked: str | None) -> Any:
    try:
        return None if asked is None else json.loads(asked)
    except ValueError:
        return asked


def _call(turn: Turn) -> dict[str, Any]:
    return {
        "agent": turn.call.agent,
        "response_id": turn.call.response_id,
        "messages": [_words(message) for message in turn.prompt],
        "answer": None if turn.answer is None else _words(turn.answer),
        "finish_reason": turn.call.finish_reason,
    }


def _words(message: Any) -> dict[str, Any]:
    parts = [part for part in message.get("parts") or () if isinstance(part, dict)]
    plain = {**message, "parts": [part for part in parts if part.get("type") not in ("tool_call", "reasoning")]}
    said: dict[str, Any] = {"role": message.get("role"), "content": message_text(plain)}
    if any(part.get("type") == "tool_call_response" for part in parts):
        said["content"] = said["content"].removeprefix("(the tool answers) ")
    calls = [part for part in parts if part.get("type") == "tool_call"]
    if calls:
        said["tool_calls"] = [{"name": part.get("name"), "arguments": part.get("arguments")} for part in calls]
    return said


def _said(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise JudgeError(
            f"the last line of its output is {line[:200]!r}; it has to be JSON: 0.5, or "
            '{"score": 0.5, "reason": "..."}'
        ) from None


def _scores(said: Any, line: str, of_what: str, names_of: str, names: Sequence[str]) -> Mapping[str, Any]:
    """Return what the program says about each name, in the order of ``names``."""
    scores = said.get("scores") if isinstance(said, dict) else None
    if not isinstance(scores, dict) or set(scores) != set(names):
        raise JudgeError(
            f'the last line of its output is {line[:200]!r}; {of_what} it has to be {{"scores": {{...}}}} with each of '
            f"the {len(names)} {names_of} once"
        )
    return {name: scores[name] for name in names}


def _scores_of_calls(said: Any, line: str, calls: int) -> Sequence[Any]:
    scores = said.get("scores") if isinstance(said, dict) else None
    if not isinstance(scores, list) or len(scores) != calls:
        raise JudgeError(
            f'the last line of its output is {line[:200]!r}; of calls it has to be {{"scores": [...]}} with one score '
            f"or null for each of the {calls} calls"
        )
    return scores


def _verdict(said: Any, line: str, *, place: int = 0, agent: str | None = None, call: int | None = None) -> Verdict:
    score, reason = (said.get("score"), said.get("reason", "")) if isinstance(said, dict) else (said, "")
    if score is None and (said is None or "score" in said):
        return Verdict(place, None, str(reason) or "the program gave no score", agent, call)
    if not isinstance(score, int | float) or not abs(score) <= LARGEST_REWARD:
        raise JudgeError(f"the last line of its output is {line[:200]!r}; the score in it is not a number")
    return Verdict(place, float(score), str(reason), agent, call)


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_OUTPUT))
    # Lines end in line feeds alone: JSON may hold other characters that `splitlines` takes for an end, such as U+2028.
    return file.read().decode(errors="replace").rstrip().rpartition("\n")[2].strip()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill its process group and, while it lives, anything it started in other groups."""
    children: list[psutil.Process] = []
    if process.poll() is None:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.wait()
