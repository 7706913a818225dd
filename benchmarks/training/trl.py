"""The quickstart's task with ours and TRL's GRPOTrainer: the same model, tasks, reward, machine; 64 samples a step.

Both make 8 attempts at each of the same 8 tasks a step on the CPU, with float32 weights, matrix products in bfloat16 if
the processor has instructions for it and otherwise in float32, and the same loss, optimizer, and schedule of the
learning rate. TRL generates by itself, in an environment of its own; ours is the whole loop: agent, gateway, engine,
trainer, publication. TRL gets the best of a small search: of micro-batches, by a step's time, and in the full run also
of learning rates, by what is earned at the end of six steps. Ours is not searched: it has the quickstart's settings
except for the size of a step, a learning rate of 5e-5, and no warm-up. What was searched is printed.

The quick run compares three steps of ours with TRL's fastest of the search. A step of TRL's that has taken 1.2 times
the goal, in the CPU time of all CPUs, is ended and counts as that long: the ratio is then a bound, and says so. In the
full run, each side trains until it solves 65 % of the held-out tasks, thirty points over the untrained model's 35 %,
which is the gain that the quickstart promises, or for the schedule's 26 steps; wall-clock counts the steps without the
search and the evaluations. TRL's training ends once it has taken so long that the goal is certainly met.

Steps that were made are kept in ``.bench-trl`` until the section has been shown: if it is interrupted, it continues
there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGTERM, Handlers, signal
from typing import Any

from benchmarks.common.peers import trl_python
from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row, at_least
from benchmarks.training.trl_sides.record import Plan, Record

TITLE = "The quickstart's task beside TRL 1.16"
_KEPT = ROOT / ".bench-trl"
_EXAMPLES = ROOT / "examples" / "calculator"
_QUICK_STEPS, _TARGET, _GOAL = 3, 0.65, 5.0
_PAST_THE_GOAL = 1.05
_STEP_LIMIT = 1.2 * _GOAL
"""How long quick waits for one step of the peer, in multiples of ours."""
_STOP_S = 120
_MICRO_BATCHES, _QUICK_MICRO_BATCHES = (4, 8, 16), (4, 8)
_RATES = (2e-5, 5e-5, 1e-4)
"""Learning rates; ours trains with the second."""
_RATE_STEPS, _RATE_JUDGED = 6, 2
"""Steps with each rate, and how many of the last ones are judged by their mean reward."""
_DIFFERENCES = (
    "ours: tokens from the project's engine over HTTP with shared prefixes cached, the update computes a shared prefix "
    "once and leaves out groups that all earned the same, publication is in the time; TRL: generate() in the same "
    "process from a copy of its weights, padded micro-batches of all samples; on both sides: float32 weights and "
    "optimizer, dtype of the products, loss, clip range, optimizer, tasks, reward, tokens of a call, temperature"
)


def run(quick: bool) -> list[Row]:
    python, reason = trl_python()
    if python is None:
        return [Row("trl", "TRL", None, note=reason)]
    plan = _plan(quick)
    kept = _KEPT / ("quick" if quick else "full")
    ours = _trained([sys.executable, "-m", "benchmarks.training.trl_sides.ours"], plan, kept / "ours")
    command = [str(python), "-m", "benchmarks.training.trl_sides.grpo"]
    if quick:
        # TRL computes on all CPUs, ours waits at times: with a lower limit, no bound could reach the wall-clock's goal.
        all_cpus_s = ours.median(lambda step: max(step.cpu_s, step.seconds * (os.cpu_count() or 1)))
        plan = replace(plan, step_limit_cpu_s=_STEP_LIMIT * all_cpus_s)

    def peer(plan: Plan, name: str) -> Record:
        return _trained(command, plan, kept / name)

    best, fastest, searched = _searched(plan, peer, quick)
    theirs = fastest if quick else peer(_next_to(best, ours), "trl")
    rows = [*searched, *_rows(ours, theirs), Row("trl", "what differs", None, note=_DIFFERENCES)]
    shutil.rmtree(kept)
    return rows


def _searched(plan: Plan, peer: Callable[[Plan, str], Record], quick: bool) -> tuple[Plan, Record, list[Row]]:
    """Return the plan with the peer's best settings, its fastest step, and a row for each setting that was tried.

    Args:
        peer: trains the peer by a plan, in a folder of the given name.
    """
    rows: list[Row] = []
    by_size: dict[int, Record] = {}
    for size in _QUICK_MICRO_BATCHES if quick else _MICRO_BATCHES:
        by_size[size] = peer(replace(plan, run_steps=1, target=None, micro_batch=size), f"trl-micro-batch-{size}")
        what = f"searched for TRL: micro-batches of {size}"
        rows.append(Row("trl", what, _seconds(by_size[size]), "s", note=_bound(by_size[size]) or "one step"))
    fastest = min(by_size.values(), key=_seconds)
    plan = replace(plan, micro_batch=fastest.plan.micro_batch)
    earned: dict[float, float] = {}
    for rate in () if quick else _RATES:
        record = peer(replace(plan, run_steps=_RATE_STEPS, target=None, lr=rate), f"trl-rate-{rate:g}")
        earned[rate] = record.last_reward(_RATE_JUDGED)
        note = f"mean of steps {_RATE_STEPS - _RATE_JUDGED + 1} to {_RATE_STEPS}"
        rows.append(Row("trl", f"searched for TRL: learning rate {rate:g}", earned[rate], "reward", note=note))
    if earned:
        plan = replace(plan, lr=max(earned, key=lambda rate: earned[rate]))
    chosen = f"micro-batches of {plan.micro_batch}, learning rate {plan.lr:g}"
    note = f"{chosen}" + (" (not searched: no step's time depends on it)" if quick else "")
    return plan, fastest, [*rows, Row("trl", "chosen for TRL", None, note=note)]


def _seconds(side: Record) -> float:
    return side.median(lambda step: step.seconds)


def _next_to(plan: Plan, ours: Record) -> Plan:
    """Return the peer's plan: once the goal is certainly met, training longer would tell nothing more."""
    if ours.reached_at is None:
        return plan
    return replace(plan, enough_s=_PAST_THE_GOAL * _GOAL * ours.seconds_until(ours.reached_at))


def _plan(quick: bool) -> Plan:
    from lightning_trainer.config.hardware import fast_dtype
    from lightning_trainer.models.resolve import model_cache, resolve_model

    model_dir = str(resolve_model("embedded:smollm2-135m-instruct", model_cache()))
    plan = Plan(model_dir, str(_EXAMPLES), _before_question(), _QUICK_STEPS, dtype=fast_dtype())
    return plan if quick else replace(plan, run_steps=plan.schedule_steps, target=_TARGET)


def _before_question() -> list[dict[str, Any]]:
    """Return the agent's instructions and worked examples."""
    sys.path.insert(0, str(_EXAMPLES))
    from agent import EXAMPLES, INSTRUCTIONS  # pyright: ignore[reportMissingImports]

    messages: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]
    for question, expression, result in EXAMPLES:
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": f"The answer is {result}."},
        ]
    return messages


def _trained(command: list[str], plan: Plan, folder: Path) -> Record:
    """Make the steps that are missing, in a process of the side's own, and return the record."""
    said = json.dumps(asdict(plan))
    if folder.exists() and (folder / "plan.json").read_text() != said:
        shutil.rmtree(folder)  # of another plan
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(said)
    if not Record(folder).done:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        with (folder / "log").open("ab") as log, _ended_with_us():
            side = subprocess.Popen([*command, str(folder)], env=environment, stdout=log, stderr=log)
            try:
                side.wait()
            finally:
                if side.poll() is None:
                    side.terminate()
                    side.wait(_STOP_S)
        if side.returncode:
            last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
            raise SystemExit(f"{folder.name} ended with {side.returncode}: {''.join(last)}; log: {folder / 'log'}")
    return Record(folder)


@contextmanager
def _ended_with_us() -> Iterator[None]:
    """When SIGTERM ends this process in the block, end the side's process first."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before: Any = signal(SIGTERM, end)
    try:
        yield
    finally:
        signal(SIGTERM, before or Handlers.SIG_DFL)


def _rows(ours: Record, theirs: Record) -> list[Row]:
    seconds = [_seconds(side) for side in (ours, theirs)]
    cpu = [side.median(lambda step: step.cpu_s) for side in (ours, theirs)]
    rows = [
        at_least(
            "trl",
            "a step of 64 samples: wall-clock, TRL over ours",
            seconds[1] / seconds[0],
            _GOAL,
            "x",
            _bound(theirs),
        ),
        Row("trl", "a step of 64 samples: ours", seconds[0], "s", note=_made(ours)),
        Row("trl", "a step of 64 samples: TRL", seconds[1], "s", note=_made(theirs)),
        Row("trl", "a step of 64 samples: CPU time, TRL over ours", cpu[1] / cpu[0], "x", note=_bound(theirs)),
        Row("trl", "a step of 64 samples: CPU time, ours", cpu[0], "CPU-s"),
        Row("trl", "a step of 64 samples: CPU time, TRL", cpu[1], "CPU-s"),
    ]
    if ours.plan.target is not None:
        rows += _to_the_score(ours, theirs, ours.plan.target)
    return rows


def _bound(side: Record) -> str:
    return "at least: its step was ended there" if any(step.unfinished for step in side.steps) else ""


def _made(side: Record) -> str:
    if bound := _bound(side):
        return bound
    steps = side.whole_steps
    load = sum(step.load for step in steps) / len(steps)
    reward = sum(step.reward for step in steps) / len(steps)
    return (
        f"median of {len(steps)} steps, {min(s.seconds for s in steps):.1f} to {max(s.seconds for s in steps):.1f} s; "
        f"load average {load:.1f} on {os.cpu_count()} CPUs; mean reward {reward:.2f}"
    )


def _to_the_score(ours: Record, theirs: Record, target: float) -> list[Row]:
    what = f"to {target:.0%} of {ours.plan.held_out} held-out tasks"
    times: list[float | None] = []
    rows: list[Row] = []
    for name, side in (("ours", ours), ("TRL", theirs)):
        reached = side.reached_at
        times.append(None if reached is None else side.seconds_until(reached))
        seen = ", ".join(f"{success:.2f} after {step}" for step, success in sorted(side.held_out.items()))
        note = f"held-out success {seen}" if reached else f"not reached in {len(side.steps)} steps: {seen}"
        rows.append(Row("trl", f"{what}: {name}", times[-1], "s", note=note))
    own, other = times
    # A side that never reaches the target has taken at least as long as it trained.
    beside = other if other is not None else theirs.seconds_until(len(theirs.steps))
    note = "" if other is not None else "at least: TRL did not get there"
    return [at_least("trl", f"{what}: TRL over ours", own and beside / own, _GOAL, "x", note), *rows]
