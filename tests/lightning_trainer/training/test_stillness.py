"""A process that was stopped is told from one that only waits."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from lightning_trainer.training.on_ray.hang_detection import Stillness

WAITING = "import time\nwhile True: time.sleep(0.05)"


@pytest.fixture
def waiting():
    with subprocess.Popen([sys.executable, "-c", WAITING]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def looked_at(process: psutil.Process, for_s: float) -> list[psutil.Process]:
    stillness, until, found = Stillness(silence_s=1.0), time.monotonic() + for_s, []
    while time.monotonic() < until and not found:
        found = stillness.of([process])
        time.sleep(0.1)
    return found


@pytest.mark.long
def test_one_that_waits_is_not_still(waiting):
    assert looked_at(waiting, 2.5) == []


@pytest.mark.long
def test_one_that_was_stopped_is_and_one_that_was_continued_is_not(waiting):
    waiting.send_signal(signal.SIGSTOP)
    assert looked_at(waiting, 20) == [waiting]
    waiting.send_signal(signal.SIGCONT)
    assert looked_at(waiting, 2.5) == []


@pytest.mark.long
def test_one_that_has_ended_is_not_said_to_hang(waiting):
    waiting.kill()
    waiting.wait(10)
    assert looked_at(waiting, 1.5) == []


@pytest.mark.process
def test_one_that_was_stopped_is_let_go_on_and_one_that_hangs_is_killed(waiting):
    with subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(1000)"]) as other:
        time.sleep(2)  # its start is work
        hanging = psutil.Process(other.pid)
        waiting.send_signal(signal.SIGSTOP)
        stillness, until, ended = Stillness(silence_s=2.0), time.monotonic() + 30, []
        while time.monotonic() < until and not (ended and waiting.status() != psutil.STATUS_STOPPED):
            ended += stillness.end_what_hangs([waiting, hanging])
            time.sleep(0.1)
        assert ended == [hanging]
        assert other.wait(10) == -signal.SIGKILL
        assert waiting.status() != psutil.STATUS_STOPPED
