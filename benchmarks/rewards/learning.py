"""The calculator agent, trained with a judge that errs and a second reward: what correction is worth in real runs.

The judge says whether an answer is right, and errs at the given rate on right and on wrong answers. The second reward
pulls the other way: 0.3 for an answer without the calculator. Before training, three in five of the answers that use it
are right, so the right reward favors using it. A judge that errs at 30 % of either kind tells right from wrong by 0.4
instead of 1: without correction, 0.24 on average is less than 0.3, and the policy learns never to calculate. This is
where correction matters: in the weights between several rewards. With a single reward and an advantage that is divided
by the group's deviation, correction cancels out (docs/rewards.md). Advantages are not divided by the deviation here: in
a group without a right answer, the smaller reward alone would count as much as the right one does elsewhere, whatever
its weight.

The problems have one operation. With problems of two operations among them, less than half of the answers are right
before training, which is close to 0.3: a corrected verdict varies by more than 1, so chance then takes the policy, in
some runs and within ten steps, to a point where it never calculates, finds nothing right any more, and cannot come
back.

Every run has a daemon, an engine, and a trainer of its own, and gets a line in the file of results when it has ended: a
run with a line is not repeated.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common.daemons import example_configuration, running_daemon
from benchmarks.common.processes import in_own_process

_EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
_POLICY = "calculator"
_ROUNDS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.3, ("true", "corrected")),
    (0.3, ("plain",)),
    (0.2, ("corrected", "plain")),
    (0.1, ("corrected", "plain")),
    (0.0, ("corrected",)),
)
"""How often the judge errs, and the rewards to train with, each with every seed; the claim's come first, so that an
interrupted benchmark has those. The true reward is that of a judge that never errs, so it needs no other rate."""
_STEPS = 60
"""At 30 %, a corrected verdict varies six times as much as the right reward: 26 steps are enough for the right reward,
but not for the corrected one."""
_NUMBERS = 2
"""Numbers in a problem of one operation."""
_BESIDE = 0.3
"""Weight of the reward for an answer without the calculator."""
_TEMPERATURE = 0.4
"""Of rollouts. At 1.0, one answer in ten with the calculator is right before training, so any weight worth measuring
would outweigh the right reward too."""
_PROGRAM = """
import hashlib

def judge(told):
    return {"scores": {one["attempt_id"]: said(one) for one in told["attempts"] if "score" in one["rewards"]}}

def said(one):
    chance = int(hashlib.sha256(f"{SEED}/{one['attempt_id']}".encode()).hexdigest()[:8], 16) / 2**32
    right = one["rewards"]["score"]
    return 1 - right if chance < RATE else right

def brief(told):
    return {"scores": {one["attempt_id"]: float(len(one["calls"]) == 1) for one in told["attempts"]}}
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: the reward that it trains with, and how long."""

    reward: str
    """``true``, ``plain`` or ``corrected``."""
    rate: float
    seed: int
    steps: int
    held_out: int
    labels: int
    """Answers whose right reward the daemon knows before training begins."""


def arms(*, quick: bool) -> Iterator[Arm]:
    """Yield the runs in their order."""
    size = {"steps": 6, "held_out": 24, "labels": 64} if quick else {"steps": _STEPS, "held_out": 96, "labels": 400}
    for rate, rewards in _ROUNDS[:2] if quick else _ROUNDS:
        for seed in range(1 if quick else 3):
            for reward in rewards:
                yield Arm(reward, 0.0 if reward == "true" else rate, seed, **size)


def learning(results: Path, *, quick: bool) -> bool:
    """Make the runs that lack a line, print the table; return whether the claim holds (``quick`` makes none)."""
    results.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if results.exists():
        for line in results.read_text().splitlines():
            told = json.loads(line)
            known[Arm(**told["arm"])] = told["success"]
    for arm in arms(quick=quick):
        if arm not in known:
            known[arm] = in_own_process(_success, arm)
            with results.open("a") as file:
                file.write(json.dumps({"arm": asdict(arm), "success": known[arm]}) + "\n")
            print(f"{arm.reward:>10} {arm.rate:4.0%} seed {arm.seed}: {known[arm]:.1%} held-out success", flush=True)
    print(f"\n{'judge noise':>12} {'true reward':>12} {'not corrected':>14} {'corrected':>10}")
    for rate in (0.3,) if quick else sorted({rate for rate, _ in _ROUNDS}):
        plain = _mean(known, "plain" if rate else "true", rate, quick=quick)
        true, corrected = (_mean(known, "true", 0.0, quick=quick), _mean(known, "corrected", rate, quick=quick))
        print(f"{rate:12.0%} {true:12.1%} {plain:14.1%} {corrected:10.1%}", flush=True)
    return quick or _mean(known, "corrected", 0.3, quick=False) >= _mean(known, "true", 0.0, quick=False) - 0.05


def _mean(known: dict[Arm, float], reward: str, rate: float, *, quick: bool) -> float:
    return fmean(known[arm] for arm in arms(quick=quick) if (arm.reward, arm.rate) == (reward, rate))


def _success(arm: Arm) -> float:
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        _write(folder, arm)
        with running_daemon(folder, _POLICY):
            return _trained(folder, arm)


def _write(folder: Path, arm: Arm) -> None:
    (folder / "noise.py").write_text(f"SEED, RATE = {arm.seed}, {arm.rate}\n{_PROGRAM}")
    text, found = re.subn("total_steps = [0-9]+", f"total_steps = {arm.steps}", example_configuration("calculator"))
    assert found == 1, "the calculator's learning rate has no schedule any more"
    judge = {
        "true": "score = 1.0",
        "plain": "judge = 1.0",
        "corrected": "judge = { weight = 1.0, correct = true }",
    }[arm.reward]
    text += f"reward = {{ {judge}, brief = {_BESIDE} }}\nalgorithm = {{ normalize_by_std = false }}\n"
    for name, more in (("judge", 'checked_by = ["checked"]\nfloor = 0.05\n'), ("brief", "")):
        text += (
            f'\n[[judge]]\nname = "{name}"\nkind = "program"\nfunction = "noise.py:{name}"\nwhole_group = true\n{more}'
        )
    (folder / "lightning.toml").write_text(text)


def _trained(folder: Path, arm: Arm) -> float:
    """Label answers if the judge is corrected, train, and return held-out success."""
    sys.path.insert(0, str(_EXAMPLE))
    import lightning_instrumentation as lt
    from agent import solve  # pyright: ignore[reportMissingImports]
    from tasks import heldout_tasks, score, train_tasks  # pyright: ignore[reportMissingImports]

    from lightning_trainer.rollouts import Runner

    def sampled(task: Any) -> None:
        lt.reward(score(solve(task.question, temperature=_TEMPERATURE), task), name="score")

    def labeled(task: Any) -> None:
        right = score(solve(task.question, temperature=_TEMPERATURE), task)
        lt.reward(right, name="score")
        lt.reward(right, name="checked")

    def answered(task: Any) -> float:
        return score(solve(task.question, temperature=0.0), task)

    if arm.reward == "corrected":
        others = _of_one_operation(partial(train_tasks, 10_000_000 + arm.seed), arm.labels)
        Runner(_POLICY, labeled).evaluate(others, stage="labels")
        lt.flush(60)
        command = [sys.executable, "-m", "lightning_trainer", "judge", "--judge", "judge", "--since", "7d"]
        subprocess.run([*command, "--config", str(folder / "lightning.toml")], check=True, capture_output=True)

    def tasks_of(step: int) -> list[Any]:
        return _of_one_operation(partial(train_tasks, arm.seed * 10_000 + step), 10)

    Runner(_POLICY, sampled).train(tasks_of, steps=arm.steps)
    ended = Runner(_POLICY, answered).evaluate(_of_one_operation(heldout_tasks, arm.held_out), stage="held-out")
    return fmean(one.reward or 0.0 for one in ended)


def _of_one_operation(tasks: Callable[[int], list[Any]], count: int) -> list[Any]:
    """Return the first ``count`` tasks of one operation, which three in five are."""
    found = [task for task in tasks(2 * count) if len(task.numbers) == _NUMBERS][:count]
    assert len(found) == count
    return found
