"""An evaluation's score is the last line that it prints; whatever else it does is an error in one sentence."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from lightning_trainer.daemon.publication.guard import held_out_score
from lightning_trainer.errors import EvaluationError

pytestmark = pytest.mark.process


@pytest.fixture
def run(tmp_path: Path):
    """``run(python, ...)``: the score of a Python program."""

    async def run(python: str, *, timeout_s: float = 30.0, program: str = sys.executable) -> float:
        environment = {**os.environ, "LIGHTNING_CANDIDATE": "p@v7"}
        log = tmp_path / "logs" / "guard.log"
        return await held_out_score(
            (program, "-c", python), environment=environment, working_dir=tmp_path, log=log, timeout_s=timeout_s
        )

    return run


async def test_the_last_line_is_the_score_and_the_rest_is_kept(run, tmp_path):
    said = (
        "import os, sys; print('3 of 4'); print(os.environ['LIGHTNING_CANDIDATE'], file=sys.stderr); print(0.75, '\\n')"
    )
    assert await run(said) == 0.75
    assert (tmp_path / "logs" / "guard.log").read_text() == "p@v7\n"
    assert (tmp_path / "logs" / "guard.out").read_text().startswith("3 of 4\n")
    assert await run("print('x' * 100_000); print('-1e-3', end='')") == -1e-3


async def test_it_runs_where_it_was_told_to(run, tmp_path):
    (tmp_path / "score.txt").write_text("0.25")
    assert await run("print(open('score.txt').read())") == 0.25


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("print(1); raise SystemExit(3)", r"ended with status 3 \(log: .*guard\.log\)"),
        ("print(1); print('done')", "is 'done'; it has to be the score, a finite number"),
        ("print('nan')", "is 'nan'; it has to be"),
        ("pass", "is ''; it has to be"),
    ],
)
async def test_no_score_is_an_error_that_says_why(run, python: str, sentence: str):
    with pytest.raises(EvaluationError, match=sentence):
        await run(python)


async def test_a_program_that_is_not_there_is_named(run):
    with pytest.raises(EvaluationError, match=r"'no-such-program -c pass' cannot be run in .*: No such file"):
        await run("pass", program="no-such-program")


CHILD = "import subprocess, sys, time; "
CHILD += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
CHILD += "open('child', 'w').write(str(p.pid)); {then}"


async def test_what_takes_too_long_is_ended_with_all_that_it_started(run, tmp_path):
    began = time.monotonic()
    with pytest.raises(EvaluationError, match=r"took longer than guard\.timeout_s = 2"):
        await run(CHILD.format(then="time.sleep(60)"), timeout_s=2.0)
    assert time.monotonic() - began < 20
    assert _ended(tmp_path)


async def test_what_is_left_of_one_that_has_ended_is_ended_too(run, tmp_path):
    assert await run(CHILD.format(then="print(1)")) == 1.0
    assert _ended(tmp_path)


async def test_a_daemon_that_stops_ends_it(run, tmp_path):
    running = asyncio.create_task(run(CHILD.format(then="time.sleep(60)")))
    async with asyncio.timeout(20):
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _ended(tmp_path)


def _ended(folder: Path) -> bool:
    try:
        return psutil.Process(int((folder / "child").read_text())).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
