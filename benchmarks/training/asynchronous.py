"""Wall-clock time to the same number of updates, synchronous and asynchronous, if tools take long now and then.

An agent asks the model, waits for its tool, asks again; how long the tool takes is drawn from a Pareto distribution
(shape 1.3, so its tail is heavy), the same for both runs. Model, trainer and engine are real and tiny, so the figure is
about waiting and not about arithmetic. The runs differ in ``max_staleness`` alone.
"""

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.daemons import policy_status, running_daemon
from benchmarks.common.processes import in_own_process
from benchmarks.common.rows import Row, at_least

TITLE = "Asynchronous against synchronous, tools with a heavy tail"
POLICY = "waiting"
GROUPS, SIZE = 8, 8
_STALENESS, _MEDIAN_S, _LONGEST_S = 2, 1.0, 30.0
"""``max_staleness`` of the second run; the median of a tool's latency, and where its tail is cut off."""
CONFIG = """
[daemon]
port = 0
token = "none"
state_dir = "state"

[engine]
dtype = "float32"
max_model_len = 512
max_num_seqs = 128
kv_cache_gib = 0.25

[training]
dtype = "float32"

[[policy]]
name = "{policy}"
agents = ["waiting"]
model = "random:tiny"
group_size = {size}
groups_per_step = {groups}
max_sample_tokens = 512
max_staleness = {staleness}
"""


@dataclass(frozen=True)
class Task:
    id: str
    step: int


class Tool:
    """A tool that takes as long for the n-th attempt of a task in one run as in the other."""

    def __init__(self, median_s: float, longest_s: float) -> None:
        self._scale, self._longest_s = median_s / 2 ** (1 / 1.3), longest_s
        self._calls: dict[Task, int] = {}

    def latency_s(self, task: Task) -> float:
        self._calls[task] = number = self._calls.get(task, 0) + 1
        draw = random.Random(f"{task.step}/{task.id}/{number}").paretovariate(1.3)
        return min(self._scale * draw, self._longest_s)


@dataclass(frozen=True)
class Run:
    staleness: int
    seconds: float
    updates: int
    staleness_mean: float
    staleness_max: float
    stale_tokens: int
    sampled_tokens: int


def _train(staleness: int, steps: int, median_s: float, longest_s: float) -> Run:
    import lightning_instrumentation as lt
    from openai import OpenAI

    from lightning_trainer.rollouts import Runner

    tool = Tool(median_s, longest_s)
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        text = CONFIG.format(policy=POLICY, size=SIZE, groups=GROUPS, staleness=staleness)
        (folder / "lightning.toml").write_text(text)
        with running_daemon(folder, POLICY) as url:
            client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=4)

            @lt.agent("waiting")
            def attempt(task: Task) -> float:
                messages: list[Any] = [{"role": "user", "content": f"{task.step} {task.id}"}]
                first = _ask(client, messages)
                time.sleep(tool.latency_s(task))
                messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "the tool says 7"}]
                return len(set(_ask(client, messages))) / 10

            runner = Runner(POLICY, attempt, endpoint=url, concurrency=(staleness + 1) * GROUPS * SIZE)
            began = time.monotonic()
            runner.train(lambda step: [Task(f"t{n}", step) for n in range(GROUPS)], steps=steps)
            seconds = time.monotonic() - began
            status = policy_status(url, POLICY)
    ages = [step["metrics"] for step in status["steps"] if "staleness/mean" in step["metrics"]]
    return Run(
        staleness,
        seconds,
        sum(step["state"] == "trained" for step in status["steps"]),
        sum(age["staleness/mean"] for age in ages) / len(ages),
        max(age["staleness/max"] for age in ages),
        sum(row["tokens"] for row in status["ledger"] if row["reason"] == "stale"),
        sum(row["tokens"] for row in status["ledger"]),
    )


def _ask(client: Any, messages: list[Any]) -> str:
    answer = client.chat.completions.create(model=POLICY, messages=messages, max_tokens=12, temperature=1.0)
    return answer.choices[0].message.content or ""


def run(quick: bool) -> list[Row]:
    alone, ahead = (
        in_own_process(_train, staleness, 6 if quick else 12, _MEDIAN_S, _LONGEST_S) for staleness in (0, _STALENESS)
    )
    name = f"max_staleness = {_STALENESS}"
    stale = f"{ahead.stale_tokens:,} of {ahead.sampled_tokens:,} tokens dropped as stale"
    times = f"{alone.updates} updates in {alone.seconds:.1f} s, {ahead.updates} in {ahead.seconds:.1f} s"
    return [
        at_least("asynchronous", f"{name}: wall-clock, ratio", alone.seconds / ahead.seconds, 1.8, "x", times),
        Row("asynchronous", f"{name}: staleness, mean", ahead.staleness_mean, "versions", note=stale),
        Row("asynchronous", f"{name}: staleness, largest", ahead.staleness_max, "versions"),
    ]
