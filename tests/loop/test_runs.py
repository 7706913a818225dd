"""Several runs on one daemon at the same time, and the examples that train: two policies, adapters on one engine."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightning_trainer.store.steps import select_batches

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
GROUPS, SIZE, STEPS = 2, 2, 2
POLICY = """
[[policy]]
name = "{name}"
agents = {agents}
model = "random:tiny"
group_size = {size}
groups_per_step = {groups}
max_sample_tokens = 1536
lora = {{ rank = 4 }}
"""


@pytest.fixture(scope="module")
def daemon(make_daemon) -> Iterator:
    policies = POLICY.format(name="tiny", agents=["tester"], size=SIZE, groups=GROUPS)
    policies += POLICY.format(name="team", agents=["planner", "worker"], size=2, groups=6)
    engine = "max_model_len = 1536"
    daemon = make_daemon(policies)
    daemon.config.write_text(daemon.config.read_text().replace("max_model_len = 256", engine))
    with daemon.running("tiny", "team"):
        yield daemon


def runs(daemon) -> Counter[str]:
    """Attempts that are to train, by the run that their group belongs to."""
    with daemon.database() as database:
        rows = database.execute("SELECT group_id FROM attempts WHERE mode = 'train'").fetchall()
    return Counter(group.partition("/")[0] for (group,) in rows)


def test_three_runs_and_the_command_line_at_once_share_no_group_wait_for_nobody_and_train_every_token(daemon):
    script = HERE / "runs_script.py"
    go, count, tasks = (daemon.folder / name for name in ("go", "count", "tasks.jsonl"))
    tasks.write_text("".join(json.dumps({"id": f"task-{n}"}) + "\n" for n in range(GROUPS)))
    program = [sys.executable, str(script), "--wait-for", str(go), "--count", str(count)]
    command = ["rollouts", "--policy", "tiny", "--tasks", str(tasks), "--steps", str(STEPS), "--concurrency", "1"]
    command += ["--agent", "tester", "--timeout", "300", "--endpoint", daemon.url, "--", *program]
    ours = [sys.executable, "-m", "lightning_trainer", *command]
    environment = daemon._environment() | {"OPENAI_BASE_URL": f"{daemon.url}/v1"}
    held_up = subprocess.Popen(ours, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def runner(policy: str, agent: str, groups: int) -> str:
        options = ("--policy", policy, "--agent", agent, "--groups", str(groups), "--steps", str(STEPS))
        return daemon.script(script, *options)

    try:
        with ThreadPoolExecutor() as pool:  # the same program twice, and a third time for another policy
            running = [
                pool.submit(runner, *which) for which in [("tiny", "tester", GROUPS)] * 2 + [("team", "planner", 6)]
            ]
            for one in running:
                one.result()
        assert held_up.poll() is None, "the command line is still at its first attempt, and nobody waited for it"
    finally:
        go.touch()
        said, _ = held_up.communicate(timeout=300)
    assert held_up.returncode == 0, said

    made = runs(daemon)
    assert {re.sub(r"tiny:.*runs_script.*tasks.jsonl.*", "command", name) for name in made} == {
        "tiny:runs_script.train.attempt",
        "tiny:runs_script.train.attempt-2",
        "team:runs_script.train.attempt",
        "command",
    }
    daemon.wait_until(lambda: not unconsumed(daemon))
    for policy, agent in (("tiny", "tester"), ("team", "planner")):
        own = sum(attempts for run, attempts in made.items() if run.startswith(f"{policy}:"))
        with daemon.database() as database:
            batches = select_batches(database, policy, after=0)
            members = database.execute(
                "SELECT count(*) FROM attempts WHERE mode = 'train' AND group_id LIKE ? GROUP BY group_id",
                [f"{policy}:%"],
            ).fetchall()
        assert {size for (size,) in members} == {SIZE}
        samples = [sample for batch in batches for sample in batch.samples]
        assert {sample.agent for sample in samples} == {agent}
        trained = [segment.transition_id for sample in samples for segment in sample.segments]
        assert len(trained) == len(set(trained)) == own, "one call an attempt, each of them once"
        own_rows = [row for row in daemon.policy(policy)["ledger"] if row["reason"] != "other_policy"]
        assert {row["outcome"] for row in own_rows} == {"trained"}
        assert sum(row["tokens"] for row in own_rows) == 6 * own


def unconsumed(daemon) -> int:
    with daemon.database() as database:
        ((left,),) = database.execute(
            "SELECT count(*) FROM attempts WHERE mode = 'train' AND attempt_id NOT IN"
            " (SELECT attempt_id FROM assignments)"
        )
    return left


def tokens_of_agents(daemon) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for row in daemon.policy("team")["ledger"]:
        tokens[row["agent"]] += row["tokens"]
    return tokens


@pytest.mark.parametrize("framework", ["langgraph", "autogen", "openai_agents", "crewai"])
def test_an_example_trains_a_policy_on_what_the_agents_of_its_framework_do(daemon, framework):
    python = EXAMPLES.parent / ".venv-crewai" / "bin" / "python" if framework == "crewai" else Path(sys.executable)
    if not python.exists():
        pytest.skip("CrewAI has an environment of its own: make crewai")
    steps = daemon.policy("team")["steps_done"] + 1
    script, before, spoken = EXAMPLES / framework / "train.py", runs(daemon), tokens_of_agents(daemon)
    done = subprocess.run(
        [str(python), str(script), "--steps", str(steps), "--heldout", "2", "--concurrency", "4"],
        env=daemon._environment() | {"LIGHTNING_ENDPOINT": daemon.url},
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.fullmatch(r"held-out before: \d/2\nstep \d+: reward [\d.]+\nheld-out after: \d/2\n", done.stdout)
    ((run, attempts),) = (runs(daemon) - before).items()
    assert attempts == 6 * 2
    with daemon.database() as database:
        failed = database.execute(
            "SELECT error FROM attempts WHERE state = 'failed' AND group_id LIKE ?", [f"{run}/%"]
        ).fetchall()
    assert not failed
    spoken = tokens_of_agents(daemon) - spoken
    assert spoken.keys() == {"planner", "worker"}, "each is known by its name, and its tokens are accounted for"
