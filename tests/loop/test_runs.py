"""Several runs of one policy at the same time, the examples that train, and the dashboard of it all, on one daemon.

Runs of several policies: ``tests/lightning_trainer/daemon/loop/test_runs_at_once.py``.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightning_trainer.store.tables.steps import select_batches

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
GROUPS, SIZE, STEPS = 6, 2, 2
POLICY = """
[[policy]]
name = "team"
agents = ["tester", "planner", "worker"]
model = "random:tiny"
group_size = 2
groups_per_step = 6
max_sample_tokens = 1536
"""


@pytest.fixture(scope="module")
def daemon(make_daemon) -> Iterator:
    daemon = make_daemon(POLICY, training='backend = "inprocess"')
    # The examples show the model how it is done, and a token of the tiny one is hardly more than a letter.
    daemon.config.write_text(daemon.config.read_text().replace("max_model_len = 256", "max_model_len = 1536"))
    with daemon.running("team"):
        yield daemon


def runs(daemon) -> Counter[str]:
    """Attempts that are to train, by the run that their group belongs to."""
    with daemon.database() as database:
        rows = database.execute("SELECT group_id FROM attempts WHERE mode = 'train'").fetchall()
    return Counter(group.partition("/")[0] for (group,) in rows)


def test_two_runners_and_the_command_line_share_no_group_wait_for_nobody_and_train_every_token(daemon):
    script = HERE / "scripts" / "runs_script.py"
    go, count, tasks = (daemon.folder / name for name in ("go", "count", "tasks.jsonl"))
    tasks.write_text("".join(json.dumps({"id": f"task-{n}"}) + "\n" for n in range(GROUPS)))
    program = [sys.executable, str(script), "--wait-for", str(go), "--count", str(count)]
    command = ["rollouts", "--policy", "team", "--tasks", str(tasks), "--steps", str(STEPS), "--concurrency", "1"]
    command += ["--agent", "tester", "--timeout", "300", "--endpoint", daemon.url, "--", *program]
    ours = [sys.executable, "-m", "lightning_trainer", *command]
    environment = daemon._environment() | {"OPENAI_BASE_URL": f"{daemon.url}/v1"}
    held_up = subprocess.Popen(ours, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def runner() -> str:
        options = ("--policy", "team", "--agent", "tester", "--groups", str(GROUPS), "--steps", str(STEPS))
        return daemon.script(script, *options)

    try:
        daemon.wait_until(lambda: bool(daemon.get("/lightning/runs")))  # it has begun
        with ThreadPoolExecutor() as pool:  # the same program twice
            for run in [pool.submit(runner) for _ in range(2)]:
                run.result()
        assert held_up.poll() is None, "the command line is still at its first attempt, and nobody waited for it"
    finally:
        go.touch()
        said, _ = held_up.communicate(timeout=300)
    assert held_up.returncode == 0, said

    made = runs(daemon)
    called = {re.sub(r"@[0-9a-f]{8}", "", name) for name in made}
    assert {re.sub(r"team:.*runs_script.*tasks.jsonl.*|team:python.*-.*", "command", name) for name in called} == {
        "team:runs_script.train.attempt",
        "team:runs_script.train.attempt-2",
        "command",
    }
    steps = sum(made.values()) // (GROUPS * SIZE)
    daemon.wait_until(lambda: daemon.policy("team")["steps_done"] == steps and not unconsumed(daemon))
    with daemon.database() as database:
        batches = select_batches(database, "team", after=0)
        members = database.execute("SELECT count(*) FROM attempts WHERE mode = 'train' GROUP BY group_id").fetchall()
    assert {size for (size,) in members} == {SIZE}
    samples = [sample for batch in batches for sample in batch.samples]
    trained = [segment.transition_id for sample in samples for segment in sample.segments]
    assert len(trained) == len(set(trained)) == sum(made.values()), "one call an attempt, each of them once"
    ledger = daemon.policy("team")["ledger"]
    assert {(row["agent"], row["outcome"]) for row in ledger} == {("tester", "trained")}
    assert sum(row["tokens"] for row in ledger) == 6 * sum(made.values())


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


@pytest.mark.parametrize(
    "framework",
    ["langgraph", *(pytest.param(name, marks=pytest.mark.slow) for name in ("autogen", "openai_agents", "crewai"))],
)
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
    asked_before = r"held-out before: \d/2\n" if steps == 1 else ""
    assert re.fullmatch(asked_before + r"step \d+: reward [\d.]+\nheld-out after: \d/2\n", done.stdout)
    ((run, attempts),) = (runs(daemon) - before).items()
    assert attempts == 6 * 2
    with daemon.database() as database:
        failed = database.execute(
            "SELECT error FROM attempts WHERE state = 'failed' AND group_id LIKE ?", [f"{run}/%"]
        ).fetchall()
    assert not failed
    spoken = tokens_of_agents(daemon) - spoken
    assert spoken.keys() == {"planner", "worker"}, "each is known by its name, and its tokens are accounted for"


def test_a_browser_follows_a_step_shows_what_was_trained_and_goes_back(daemon, chromium):
    policy = daemon.policy("team")
    done, live = policy["steps_done"], policy["live_version"]  # a step whose rewards teach nothing makes no version
    page = chromium.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(daemon.url)
    page.evaluate("window.same = true")
    options = ("--policy", "team", "--agent", "tester", "--groups", str(GROUPS), "--steps", str(done + 1))
    with ThreadPoolExecutor() as pool:
        step = pool.submit(daemon.script, HERE / "scripts" / "runs_script.py", *options)
        page.wait_for_selector(f".figures a:text-is('v{done + 1}')", timeout=300_000)
        step.result()
    assert page.evaluate("window.same") is True, "nobody loaded the page again"

    page.goto(f"{daemon.url}/rollouts?agent=tester&step={done + 1}")
    page.locator("tbody a").first.click()
    page.wait_for_selector(".cause")
    assert f"step {done + 1}" in page.inner_text(".cause")
    assert page.locator(".tokens .t.p5, .tokens .t.n5").count() == 6, "every sampled token with its advantage"
    page.fill("input[name=reward]", "0.25")
    page.click("button:has-text('Save')")
    page.wait_for_selector(".said")
    assert "a person" in page.inner_text("main")
    for path in ("/agents", "/charts", "/costs", "/setup"):
        page.goto(daemon.url + path)
        assert len(page.inner_text("main")) > 80

    page.goto(f"{daemon.url}/versions?policy=team")
    page.click(f"tr:has-text('v{live}') >> text=Roll back")
    page.set_default_timeout(300_000)
    page.click(f"button:has-text('Roll back to v{live}')")
    page.wait_for_selector(".said")
    assert daemon.policy("team")["live_version"] == live
    assert daemon.answer("team").version == str(live)
    assert said == []
    page.close()
