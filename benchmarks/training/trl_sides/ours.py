"""Our side: the quickstart's configuration and agent, in steps of as many samples as TRL's."""

import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.daemons import cpu_s_of_all, example_configuration, policy_status, running_daemon
from benchmarks.training.trl_sides.record import Plan, Record, Watch

_POLICY = "calculator"


def main(folder: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the daemon is stopped on the way out
    record = Record(folder)
    plan = record.plan
    went_on = (folder / "state").exists()
    (folder / "lightning.toml").write_text(_configuration(plan))
    with running_daemon(folder, _POLICY) as url:
        sys.path.insert(0, plan.examples_dir)
        from agent import solve  # pyright: ignore[reportMissingImports]
        from tasks import heldout_tasks, score, train_tasks  # pyright: ignore[reportMissingImports]

        from lightning_trainer.rollouts import AttemptEnded, Runner

        rewards: list[float] = []

        def note(event: Any) -> None:
            if isinstance(event, AttemptEnded):
                rewards.append(event.reward or 0.0)

        def runner(temperature: float) -> Runner:
            def attempt(task: Any) -> float:
                return score(solve(task.question, temperature=temperature), task)

            return Runner(_POLICY, attempt, endpoint=url, concurrency=plan.groups * plan.size, on_event=note)

        done = policy_status(url, _POLICY)["steps_done"]
        trained, greedy = runner(1.0), runner(0.0)
        for step in range(done + 1, plan.schedule_steps + 1):
            if record.done:
                break
            watch = Watch(cpu_s_of_all)
            trained.train(lambda number: train_tasks(number, plan.groups), steps=step)
            record.step(watch.ended(step, _mean(rewards), partial=went_on and step == done + 1))
            if plan.target is not None and step % plan.evaluate_every == 0:
                greedy.evaluate(heldout_tasks(plan.held_out), stage=f"held-out-{step}")
                record.evaluated(step, _mean(rewards))


def _configuration(plan: Plan) -> str:
    """Return the quickstart's configuration, with the plan's step, model, and schedule, and a state folder of its own.

    Raises:
        ValueError: the example's configuration no longer says what is replaced here.
    """
    text = example_configuration("calculator")
    for said, wanted in {
        "group_size = 7": f"group_size = {plan.size}",
        "groups_per_step = 10": f"groups_per_step = {plan.groups}",
        'model = "embedded:smollm2-135m-instruct"': f'model = "{plan.model_dir}"',
        "lr = 3e-5": f"lr = {plan.lr}",
        "warmup_steps = 2": "warmup_steps = 0",
        "total_steps = 26": f"total_steps = {plan.schedule_steps}",
        "min_lr_ratio = 0.1": f"min_lr_ratio = {plan.min_lr_ratio}",
    }.items():
        if said not in text:
            raise ValueError(f"examples/calculator/lightning.toml has no {said!r}; change it in trl_sides/ours.py too")
        text = text.replace(said, wanted)
    return text


def _mean(rewards: list[float]) -> float:
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    rewards.clear()
    return mean


if __name__ == "__main__":
    main(Path(sys.argv[1]))
