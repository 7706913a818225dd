"""Sixty-four attempts at once, each with its own process: time of a step, memory, and processes left afterwards."""

import statistics
import threading
import time
from pathlib import Path

import psutil

from benchmarks.common.rows import Row, at_most
from lightning_trainer.environments import Action, Task
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.pool import EnvironmentPool

TITLE = "Sixty-four environments at once"
_WORLD = Path(__file__).with_name("world.py")
_AT_ONCE = 64


def run(quick: bool) -> list[Row]:
    turns = 20 if quick else 100
    began = time.perf_counter()
    spec = EnvironmentSpec.parse(f"{_WORLD}:World?turns={turns}&busy_ms=1")
    pool = EnvironmentPool(launch_of(spec), Limits(), size=_AT_ONCE)
    ready, go = threading.Barrier(_AT_ONCE + 1), threading.Event()
    times: list[float] = []
    failed: list[Exception] = []

    def attempt(seed: int) -> None:
        try:
            with pool.lease() as process:
                ready.wait(300)
                go.wait()
                session = Session(process, Task("world", "1", seed=seed))
                while not session.done:
                    step_began = time.perf_counter()
                    session.step(Action("go"))
                    times.append(time.perf_counter() - step_began)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(seed,)) for seed in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    ready.wait(300)
    started = time.perf_counter() - began
    processes = psutil.Process().children()
    shared = sum(process.memory_full_info().uss for process in processes)
    playing = time.perf_counter()
    go.set()
    for thread in threads:
        thread.join(600)
    played = time.perf_counter() - playing
    pool.close()
    left = sum(process.is_running() for process in processes)
    mean_ms = played / (turns * _AT_ONCE) * 1000
    return [
        Row("many", "processes started", started, "s", note="four at a time"),
        Row("many", "memory of their own, each", shared / len(processes) / 2**20, "MiB"),
        at_most("many", "a step of 1 ms, all in turn", mean_ms, 4.0, "ms", "1 ms of it is the world's own work"),
        Row("many", "a step as its attempt sees it (median)", statistics.median(times) * 1000, "ms"),
        at_most("many", "attempts that failed", len(failed), 0, ""),
        at_most("many", "processes left", left, 0, ""),
    ]
