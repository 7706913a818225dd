"""An environment through everything: the command plays it behind a pipe, the daemon trains, a broken attempt is one."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

GROUPS, SIZE, TURNS = 4, 2, 2
POLICY = """
[[policy]]
name = "game"
agents = ["game"]
model = "random:tiny"
group_size = 2
groups_per_step = 4
max_sample_tokens = 256
"""
WORLD = f"""
import os

from lightning_trainer.environments import Action, Task


class Letters:
    def reset(self, task: Task) -> str:
        self.turns, self.broken = 0, task.seed == 1
        return f"say {{task.seed}}"

    def step(self, action: Action) -> tuple[str, float, bool]:
        self.turns += 1
        if self.broken:
            os._exit(7)
        # The length of an untrained model's answer differs from attempt to attempt; any number will do here.
        return "again", sum(map(ord, action.text)) % 7 / 7, self.turns == {TURNS}
"""


def test_an_environment_is_played_and_trained_and_a_broken_one_is_a_failed_attempt(make_daemon, tmp_path: Path) -> None:
    world = tmp_path / "letters.py"
    world.write_text(WORLD)
    daemon = make_daemon(POLICY, training='backend = "inprocess"')
    with daemon.running("game"):
        options = ("--environment", f"{world}:Letters", "--max-tokens", "4", "--policy", "game")
        said = daemon.command("rollouts", *options, "--steps", "2", "--concurrency", "4")
        assert "ended with status 7 in step 1" in said.replace("\n", " ")
        assert "step   2" in said
        evaluated = daemon.command("rollouts", *options, "--evaluate", "held-out", "--count", "3")
        assert "over 2 of 3 tasks; 1 failed" in evaluated.replace("\n", " ")
        daemon.wait_until(lambda: daemon.policy("game")["steps_done"] == 2)
        ledger = daemon.policy("game")["ledger"]
        with daemon.database() as database:
            groups = dict(
                database.execute("SELECT group_id, count(*) FROM attempts WHERE mode = 'train' GROUP BY group_id")
            )
            tasks = {task for (task,) in database.execute("SELECT DISTINCT task_id FROM attempts")}
    assert {row["agent"] for row in ledger} == {"game"}
    assert sum(row["tokens"] for row in ledger if row["outcome"] == "trained") > 0
    assert set(groups.values()) == {SIZE}
    assert len(groups) == 2 * GROUPS
    # A task's id says environment, version, split and seed.
    assert sum("#train-" in task for task in tasks) == 2 * GROUPS
    assert sum("#held-out-" in task for task in tasks) == 3
