"""Runs someone's evaluation as a process of its own and reads its score."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_trainer.errors import EvaluationError
from lightning_trainer.serving.host_processes import end_group

_GRACE_S = 5.0
_TAIL_BYTES = 4096


async def held_out_score(
    command: Sequence[str], *, environment: Mapping[str, str], working_dir: Path, log: Path, timeout_s: float
) -> float:
    """Run the command and return the number on the last line of its output; nothing of it runs on afterwards.

    Args:
        environment: the whole of it.
        log: gets what it writes to standard error; the output goes next to it, as ``.out``.

    Raises:
        EvaluationError: it cannot be run, fails, takes too long, or its last line is not a finite number.
    """
    said = f"the evaluation {' '.join(command)!r}"
    log.parent.mkdir(parents=True, exist_ok=True)
    output = log.with_suffix(".out")
    with output.open("wb") as out, log.open("wb") as err:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=working_dir,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise EvaluationError(f"{said} cannot be run in {working_dir}: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            status = await process.wait()
    except TimeoutError:
        raise EvaluationError(f"{said} took longer than guard.timeout_s = {timeout_s:g} (log: {log})") from None
    finally:
        await asyncio.to_thread(end_group, process.pid, _GRACE_S)
    if status != 0:
        raise EvaluationError(f"{said} ended with status {status} (log: {log})")
    line = _last_line(output)
    try:
        score = float(line)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise EvaluationError(f"the last line of {said} is {line!r}; it has to be the score, a finite number")
    return score


def _last_line(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
