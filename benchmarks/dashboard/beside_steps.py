"""What fifty open pages cost a step: the tiny model in real vLLM, verl and Ray, with pages and without in turn."""

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.common.daemons import running_daemon
from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row, at_most

PAGES = 50
_GOAL_PER_CENT = 3.0
_POLICY = "tiny"
_CONFIG = """
[daemon]
port = 0
token = "none"
state_dir = "state"
[engine]
dtype = "float32"
max_model_len = 512
max_num_seqs = 8
kv_cache_gib = 0.25
threads = 1
[training]
dtype = "float32"
threads = 1
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 4
groups_per_step = 4
max_sample_tokens = 512
"""


class Task(NamedTuple):
    id: str


def measure(folder: Path, pairs: int) -> Iterator[Row]:
    """Yield how much longer a step takes with pages open: the median of ``pairs`` pairs of neighboring steps."""
    folder.mkdir()
    (folder / "lightning.toml").write_text(_CONFIG)
    os.environ |= {"LIGHTNING_ENDPOINT": "", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with running_daemon(folder, _POLICY) as url:
        daemon = _daemon_process()
        steps = list(_steps(url, 2 * pairs + 2, daemon))[2:]
    shut, opened = steps[::2], steps[1::2]
    changes = [
        100 * (with_pages.seconds / without.seconds - 1) for without, with_pages in zip(shut, opened, strict=True)
    ]
    seconds = statistics.median(one.seconds for one in shut)
    spread = statistics.quantiles(changes, n=4)
    note = f"a step takes {seconds:.2f} s; half of {pairs} pairs between {spread[0]:+.1f} and {spread[2]:+.1f} %"
    yield at_most(
        "dashboard", f"{PAGES} open pages slow a step by", statistics.median(changes), _GOAL_PER_CENT, "%", note
    )
    for name, some in (("without a page", shut), (f"with {PAGES} pages", opened)):
        share = 100 * sum(one.daemon_cpu_s for one in some) / sum(one.seconds for one in some)
        yield Row("dashboard", f"processor of the daemon in those steps, {name}", share, "% of a core")


class _Step(NamedTuple):
    seconds: float
    daemon_cpu_s: float


def _steps(url: str, count: int, daemon: psutil.Process) -> Iterator[_Step]:
    """Yield steps; the pages are open during every second one."""
    import lightning_instrumentation as lt
    from openai import OpenAI

    from lightning_trainer.rollouts import Runner

    client = OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=300)
    number = itertools.count()

    @lt.agent("tester")
    def ask(question: str) -> None:
        client.chat.completions.create(
            model=_POLICY, messages=[{"role": "user", "content": question}], max_tokens=96, temperature=1.0
        )

    def attempt(task: Task) -> float:
        for turn in range(3):
            ask(f"say something about {task.id}, {turn}")
        return float(next(number) % 2)

    runner = Runner(_POLICY, attempt, concurrency=4, timeout_s=300)
    for step in range(1, count + 1):
        with _pages(url) if step % 2 == 0 else _no_pages():
            cpu = _cpu_s(daemon)
            began = time.monotonic()
            runner.train(lambda step: [Task(f"task-{step}-{place}") for place in range(4)], steps=step)
            yield _Step(time.monotonic() - began, _cpu_s(daemon) - cpu)


@contextmanager
def _pages(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.dashboard.followers", url, str(PAGES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as pages:
        try:
            assert pages.stdout is not None
            if pages.stdout.readline() != "open\n":
                sys.exit("the pages did not open")
            yield
            if pages.poll() is not None:
                sys.exit(f"the pages ended with {pages.returncode} before the step did")
        finally:
            pages.terminate()


@contextmanager
def _no_pages() -> Iterator[None]:
    yield


def _daemon_process() -> psutil.Process:
    return next(one for one in psutil.Process().children() if "serve" in one.cmdline())


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
