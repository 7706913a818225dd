"""Daemon, vLLM, verl on Ray and an agent, each a real process, with a tiny random model: the road end to end.

One daemon serves the tests in the order in which they stand: every one takes the run a step further, and the later ones
kill a process of it and look at what is left.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lightning_trainer.store.batch_codec import decode_report
from lightning_trainer.store.tables.steps import select_batches
from lightning_trainer.types import TrainingBatch

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

AGENT = Path(__file__).parent / "scripts" / "agent_script.py"
COMMAND_AGENT = Path(__file__).parent / "scripts" / "command_agent.py"
TWO_LINE_AGENT = Path(__file__).parent / "scripts" / "two_line_agent.py"
THE_TWO_LINES = ("import lightning_instrumentation as lt\n", '@lt.agent("two lines")\n')
READY_TIMEOUT_S = 400
STEP_TIMEOUT_S = 300


class Run:
    """A daemon's configuration and state folder, and the daemon that is running on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "lightning.toml"
        self.log = folder / "daemon.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config.write_text(
            f"""
            [daemon]
            port = {self.port}
            token = "none"
            state_dir = "state"
            [engine]
            dtype = "float32"
            max_model_len = 512
            max_num_seqs = 8
            kv_cache_gib = 0.25
            tool_call_parser = "hermes"
            [training]
            dtype = "float32"
            threads = 1
            [[policy]]
            name = "tiny"
            agents = ["tester"]
            model = "random:tiny"
            group_size = 2
            groups_per_step = 2
            max_sample_tokens = 256
            checkpoint_every = 2
            optimizer.lr = 1e-2
            """
        )
        self.running: subprocess.Popen | None = None

    @property
    def process(self) -> subprocess.Popen:
        assert self.running is not None, "start it first"
        return self.running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"LIGHTNING_ENDPOINT": self.url, "LIGHTNING_SPOOL_DIR": str(self.folder / "spool")}

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self.config)],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if self.reachable() and self.policy()["phase"] == "collecting":
                return
            time.sleep(0.5)
        raise AssertionError(f"not ready after {READY_TIMEOUT_S} s: {self.log.read_text()[-3000:]}")

    def reachable(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return json.load(response)

    def policy(self) -> dict:
        return self.get("/lightning/policies/tiny")

    def run_agent(self, steps: int) -> None:
        """Have an agent process bring the run to ``steps`` steps."""
        done = subprocess.run(
            [sys.executable, str(AGENT), "--steps", str(steps)],
            env=self.environment | {"OPENAI_BASE_URL": f"{self.url}/v1"},
            timeout=STEP_TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:] + self.log.read_text()[-3000:]

    def probe_logprobs(self, model: str = "tiny") -> list[float]:
        """What the served weights, or those of ``tiny@vN``, think of a fixed continuation."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "a fixed question"}],
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": 0,
            "logprobs": True,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            return [token["logprob"] for token in json.load(response)["choices"][0]["logprobs"]["content"]]

    def answers(self, base_url: str, *, lines: bool) -> str:
        """What the two-line agent prints, with its two lines or without them."""
        script = TWO_LINE_AGENT.read_text()
        if not lines:
            for line in THE_TWO_LINES:
                assert line in script
                script = script.replace(line, "")
            assert "lightning" not in script.partition('"""\n')[2]
        path = self.folder / "two_line_agent.py"
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, str(path)],
            env=self.environment | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "tiny"},
            timeout=STEP_TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def spans_of_the_two_line_agent(self) -> set[tuple]:
        """Its spans by operation, span id and response id."""
        return set(
            self.rows(
                "SELECT operation, span_id, response_id FROM spans"
                " JOIN resources ON resources.id = resource_id"
                " WHERE instr(resources.body, 'two_line_agent.py') AND scope = 'lightning.instrumentation'"
            )
        )

    def command(self, *arguments: str) -> str:
        """What a command of ours prints."""
        done = subprocess.run(
            [sys.executable, "-m", "lightning_trainer", *arguments, "--config", str(self.config)],
            env=self.environment,
            timeout=STEP_TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:] + self.log.read_text()[-3000:]
        return done.stdout

    def versions(self) -> dict[int, dict]:
        return {row["version"]: row for row in json.loads(self.command("versions", "--json"))}

    def pid(self, name: str) -> int:
        return self.get("/lightning/status")["policies"]["tiny"]["processes"][name]

    def rows(self, query: str) -> list[tuple]:
        database = sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def batches(self, after: int) -> list[TrainingBatch]:
        """What the steps beyond ``after`` were trained on."""
        database = sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)
        try:
            return select_batches(database, "tiny", after=after)
        finally:
            database.close()

    def stop(self) -> None:
        if self.running is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("loop"))
    run.start()
    try:
        yield run
    finally:
        run.stop()


def nothing_is_trained_twice(run: Run) -> bool:
    """Whether every sampled token of every step's batch belongs to a transition of its own."""
    batches = run.batches(after=0)
    trained = [segment.transition_id for batch in batches for sample in batch.samples for segment in sample.segments]
    return len(trained) == len(set(trained)) > 0


def test_a_step_changes_the_weights_and_what_is_served(run: Run):
    before = run.probe_logprobs()

    run.run_agent(steps=1)

    status = run.policy()
    assert status["steps_done"] == 1
    assert status["live_version"] == 1
    assert {version["version"]: version["state"] for version in status["versions"]} == {0: "retired", 1: "live"}
    assert all(version["probe_max_abs"] <= 1e-3 for version in status["versions"])
    step = status["steps"][0]
    assert step["metrics"]["groups/kept"] == 2
    assert step["tokens_trained"] == 2 * 2 * 2 * 8
    # Sampled at two temperatures, scored by the trainer at the same two: on-policy, so the ratio is 1.
    assert abs(step["metrics"]["actor/ppo_kl"]) < 1e-4
    assert max(abs(a - b) for a, b in zip(before, run.probe_logprobs(), strict=True)) > 1e-3
    assert sum(row["tokens"] for row in status["ledger"]) == step["tokens_trained"]


def test_an_agent_gives_the_same_answers_with_and_without_the_two_lines(run: Run):
    without = run.answers(f"{run.url}/v1", lines=False)
    assert not run.spans_of_the_two_line_agent()

    assert run.answers(f"{run.url}/v1", lines=True) == without

    spans = run.spans_of_the_two_line_agent()
    assert without.count("What is") == 2
    assert {operation for operation, *_ in spans} == {"invoke_agent", "chat"}
    assert sum(operation == "chat" for operation, *_ in spans) == 3


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        (
            "/v1/chat/completions",
            {"model": "tiny", "messages": [{"role": "user", "content": "too long " * 400}]},
            400,
            "maximum context length is 512 tokens",
        ),
        ("/v1/chat/completions", {"model": "huge", "messages": []}, 404, "huge"),
        ("/v1/traces", b"\xff\xff no protobuf", 400, "protobuf"),
        (
            "/lightning/rollouts/never-seen/rewards",
            {"value": 1.0},
            404,
            "no span of rollout 'never-seen' has been seen",
        ),
        ("/lightning/rollouts/never-seen/rewards", b'{"value": NaN}', 422, "a reward is a number between"),
    ],
    ids=["over-long prompt", "unknown model", "malformed OTLP", "reward of an unknown rollout", "a reward of NaN"],
)
def test_what_is_wrong_is_said_in_one_sentence_with_a_status(
    run: Run, path: str, body: dict | bytes, status: int, sentence: str
):
    kind = "application/x-protobuf" if path == "/v1/traces" else "application/json"
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{run.url}{path}", raw, {"content-type": kind}), timeout=60)
    assert refused.value.code == status
    assert sentence in refused.value.read().decode(errors="replace")


def test_after_the_engine_was_killed_the_run_goes_on_with_the_same_version(run: Run):
    served = run.probe_logprobs()
    os.kill(run.pid("engine"), signal.SIGKILL)

    assert max(abs(a - b) for a, b in zip(served, run.probe_logprobs(), strict=True)) < 1e-4
    run.run_agent(steps=2)

    assert run.policy()["live_version"] == 2
    assert nothing_is_trained_twice(run)


def test_after_the_trainer_was_killed_the_run_repeats_what_it_had_done_and_goes_on(run: Run):
    run.run_agent(steps=3)  # the last checkpoint is that of step 2: step 3 has to be repeated
    before = {version["version"]: version["checksum"] for version in run.policy()["versions"]}
    os.kill(run.pid("trainer"), signal.SIGKILL)

    run.run_agent(steps=4)

    after = {version["version"]: version["checksum"] for version in run.policy()["versions"]}
    assert after[3] == before[3], "the repeated step gave other weights"
    assert run.policy()["live_version"] == 4
    assert nothing_is_trained_twice(run)


@pytest.mark.slow
def test_after_the_daemon_was_killed_nothing_acknowledged_is_missing_and_the_run_goes_on(run: Run, elsewhere: str):
    run.run_agent(steps=5)
    spans = set(run.rows("SELECT trace_id, span_id FROM spans"))
    before = {version["version"]: version["checksum"] for version in run.policy()["versions"]}
    children = psutil.Process(run.process.pid).children(recursive=True)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait(30)
    # Ray's last agents notice only after a while that their node is gone.
    _, alive = psutil.wait_procs(children, timeout=150)
    assert not alive, f"left behind by a killed daemon: {alive}"
    known = run.spans_of_the_two_line_agent()
    without = run.answers(elsewhere, lines=False)
    assert run.answers(elsewhere, lines=True) == without

    run.start()

    assert spans <= set(run.rows("SELECT trace_id, span_id FROM spans"))
    # What the agent did while there was no daemon: three questions of two model calls and a tool call each.
    late = Counter(operation for operation, *_ in run.spans_of_the_two_line_agent() - known)
    assert late == {"invoke_agent": 3, "chat": 6, "execute_tool": 3}
    assert run.policy()["steps_done"] == 5
    assert {version["version"]: version["checksum"] for version in run.policy()["versions"]} == before
    run.run_agent(steps=6)
    assert run.policy()["live_version"] == 6
    assert nothing_is_trained_twice(run)


@pytest.mark.slow
def test_an_old_version_is_served_beside_the_newest_and_can_be_gone_back_to(run: Run, far_apart):
    run.run_agent(steps=6)
    sixth = run.probe_logprobs()
    run.run_agent(steps=7)
    seventh = run.probe_logprobs()
    assert far_apart(sixth, seventh) > 1e-3

    assert far_apart(run.probe_logprobs("tiny@v6"), sixth) < 1e-4
    assert run.probe_logprobs() == seventh, "the newest is served as before"
    assert psutil.pid_exists(run.pid("old_version_engine"))
    assert {version: row["state"] for version, row in run.versions().items()} == {
        **dict.fromkeys(range(6), "gone"),
        6: "stored",
        7: "serving",
    }

    assert "tiny serves version 6" in run.command("rollback", "v6")

    assert far_apart(run.probe_logprobs(), sixth) < 1e-4
    assert run.policy()["live_version"] == 6
    run.run_agent(steps=8)
    made = {version["version"]: version["checksum"] for version in run.policy()["versions"]}
    assert (run.versions()[8]["parent"], run.versions()[8]["state"]) == (6, "serving")

    os.kill(run.pid("trainer"), signal.SIGKILL)
    run.run_agent(steps=9)

    assert run.versions()[9]["parent"] == 8
    assert {v["version"]: v["checksum"] for v in run.policy()["versions"]}.items() >= made.items()
    assert nothing_is_trained_twice(run)


def test_every_step_has_one_row_of_metrics_whatever_was_killed(run: Run):
    lines = (run.folder / "state" / "metrics" / "tiny.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines)}
    assert list(rows) == list(range(1, run.policy()["steps_done"] + 1))
    assert len(lines) == len(rows)
    for row in rows.values():
        assert row["mismatch/abs_max"] < 1e-3  # both sides compute in float32
        assert row["staleness/max"] == 0
        assert row["ledger/trained"] == row["tokens/trained"] > 0
        assert 0 < row["entropy/sampled"] < 20
        assert row["reward/mean"] == 0.5
    assert list((run.folder / "state" / "metrics" / "tensorboard" / "tiny").glob("events.out.tfevents.*"))
    assert "step 1: reward 0.500" in run.log.read_text()


def test_a_program_is_run_over_tasks_in_a_file_and_trained_on(run: Run):
    tasks = run.folder / "tasks.jsonl"
    questions = ["one", "two", "three", "fail"]
    tasks.write_text("".join(json.dumps({"id": text, "question": text}) + "\n" for text in questions))
    done = run.policy()["steps_done"]
    command = [sys.executable, "-m", "lightning_trainer", "rollouts", "--policy", "tiny", "--tasks", str(tasks)]
    program = ["--agent", "tester", "--timeout", "200", "--", sys.executable, str(COMMAND_AGENT)]

    def rollouts(*options: str) -> str:
        ended = subprocess.run(
            [*command, *options, *program],
            env=run.environment | {"OPENAI_BASE_URL": f"{run.url}/v1"},
            timeout=STEP_TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-3000:] + run.log.read_text()[-3000:]
        return ended.stdout

    said = rollouts("--evaluate", "before")
    assert "over 3 of 4 tasks; 1 failed" in said
    assert "exit status 1: the tool is broken" in said

    said = rollouts("--steps", str(done + 2), "--retries", "1")
    assert run.policy()["steps_done"] == done + 2
    assert f"step {done + 2:>3}  " in said
    modes = Counter(mode for (mode,) in run.rows("SELECT mode FROM attempts WHERE task_id = 'fail'"))
    assert modes == {"evaluate": 1, "retried": 2, "train": 2}, "each of the two attempts was made again"
    ((calls,),) = run.rows(
        "SELECT count(*) FROM spans JOIN attempts USING (attempt_id)"
        " WHERE scope = 'lightning.gateway' AND task_id IN ('one', 'two', 'three') AND mode = 'train'"
    )
    assert calls == 3 * 2
    assert nothing_is_trained_twice(run)


@pytest.mark.slow
def test_remax_compares_with_a_greedy_attempt_of_each_group_that_is_never_trained(run: Run):
    done = run.policy()["steps_done"]
    run.stop()
    run.config.write_text(run.config.read_text() + 'algorithm.advantage = "remax"\n')
    run.start()

    run.run_agent(steps=done + 1)

    (batch,) = run.batches(after=done)
    assert {sample.baseline for sample in batch.samples} == {0.25}
    credits = {segment.row_id: segment.credit for sample in batch.samples for segment in sample.segments}
    assert Counter(credits.values()) == {0.0: 2, 1.0: 2}, "two groups of two attempts, and no greedy one among them"
    ((report,),) = run.rows(f"SELECT report FROM steps WHERE step = {batch.step}")
    given = Counter(value for values in decode_report(report).advantages.values() for value in values if value)
    assert given == {0.75: 2 * 16, -0.25: 2 * 16}, "1 - 0.25 and 0 - 0.25 on the 16 sampled tokens of each attempt"
    outcomes = run.rows(f"SELECT outcome, reason, tokens FROM ledger WHERE step = {batch.step} ORDER BY outcome")
    assert outcomes == [("dropped", "baseline", 2 * 16), ("trained", "sampled", 4 * 16)]


@pytest.mark.slow
def test_attempts_that_run_ahead_are_no_older_than_the_bound(run: Run):
    run.stop()
    run.config.write_text(run.config.read_text() + "max_staleness = 1\n")
    run.start()

    done, live = run.policy()["steps_done"], run.policy()["live_version"]
    assert f"the engine serves tiny@v{live} after" in run.log.read_text(), "the first call would be answered by it"
    run.run_agent(steps=done + 4)

    steps = run.policy()["steps"][done:]
    ages = [(step["metrics"]["staleness/mean"], step["metrics"]["staleness/max"]) for step in steps]
    assert len(ages) == 4
    assert all(0 <= mean <= most <= 1 for mean, most in ages)
    assert any(mean > 0 for mean, _ in ages), "nothing was sampled while the trainer was training"
    assert run.policy()["live_version"] == done + 4
    assert nothing_is_trained_twice(run)


def test_sigterm_leaves_a_last_checkpoint_and_no_process_no_port_and_no_shared_memory(run: Run):
    """Under Ray, whose core would end the process at SIGTERM. Ctrl-C goes the same way: other tests stop by it."""
    children = psutil.Process(run.process.pid).children(recursive=True)
    assert any(child.name() == "raylet" for child in children)
    version = run.policy()["live_version"]

    run.process.terminate()
    run.process.wait(120)

    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert run.process.returncode == 0
    assert not run.reachable()
    # Others on this machine may have theirs: the owner's process id is in the name.
    assert not list(Path("/dev/shm").glob(f"lightning-trainer-*-{run.process.pid}.*"))
    assert not (run.folder / "state" / "daemon.json").exists()
    assert (run.folder / "state" / "checkpoints" / "tiny" / f"step-{version:08d}" / "trainer.json").exists()
