"""Which attempts are started when: in step with the daemon, ahead of it, and after an interruption."""

import contextlib
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.scope import current

from lightning_trainer import rollouts
from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.rollouts import AttemptEnded, Curriculum, Runner, StepEnded, daemon_client

GROUPS, SIZE = 2, 3
RUN = "the-run"


@dataclass(frozen=True)
class Task:
    id: str
    step: int


def tasks_of(step: int) -> list[Task]:
    return [Task(f"task-{number}", step) for number in range(GROUPS)]


class Daemon:
    """The runner's side of a daemon: takes a step as soon as its groups are complete, whichever they are."""

    def __init__(
        self,
        max_staleness: int | None,
        *,
        needs_baseline: bool = False,
        useless: frozenset[str] | None = None,
        shown_steps: int = 0,
        groups_per_step: int = GROUPS,
    ) -> None:
        self.groups_per_step = groups_per_step
        self.shown_steps = shown_steps
        """The first ones, taken from a file when the runner waits for the first of them."""
        self.max_staleness = max_staleness
        self.needs_baseline = needs_baseline
        self.dynamic_sampling = useless is not None
        self.useless = useless or frozenset()
        """Groups without spread: a step takes further ones for them."""
        self.groups_wanted = groups_per_step
        self.complete: list[str] = []
        self.consumed: list[str] = []
        self.consumed_by: list[int] = [0]
        """How many groups were consumed when that many steps were done."""
        self.before: Counter[str] = Counter()
        """Attempts by group that had ended before the runner came."""
        self.baselines_before: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.steps_done = 0
        self.reward_means: dict[int, float] = {}
        """By step, as if it had trained on such attempts."""
        self.skips = False
        """Whether there is nothing to train in any step."""
        self.problems: list[str] = []
        self.phase = "collecting"
        self.lost: set[str] = set()
        """Groups that someone dropped: no step takes them."""
        self.hears = True
        """Whether attempts arrive here."""
        self.recorded: Counter[str] = Counter()
        self.runs: list[str] = []
        """Names that were held."""
        self._changed = threading.Condition()

    def on_event(self, event: object) -> None:
        if isinstance(event, AttemptEnded) and event.stage == "record":
            self.recorded[f"{RUN}/record/{event.task_id}"] += 1
        if isinstance(event, AttemptEnded) and event.stage == "train":
            with self._changed:
                self.ended[f"{RUN}/step-{event.step}/{event.task_id}"] += 1
                together = self.ended + self.before
                self.complete += [g for g, n in together.items() if n >= SIZE and g not in self.complete]
                self._take_steps()
                self._changed.notify_all()

    def bring(self, groups: list[str]) -> None:
        """Complete groups of another run."""
        with self._changed:
            self.complete += groups
            self._take_steps()
            self._changed.notify_all()

    def _take_steps(self) -> None:
        if self.steps_done < self.shown_steps:
            return
        while len(waiting := self.complete[len(self.consumed) :]) >= self.groups_wanted:
            taken = waiting[: self.groups_wanted]
            useless = sum(group in self.useless for group in taken)
            if self.groups_wanted - useless < self.groups_per_step:
                self.groups_wanted = self.groups_per_step + useless
                continue
            self.groups_wanted = self.groups_per_step
            self.consumed += taken
            self.steps_done += 1
            self.consumed_by.append(len(self.consumed))

    def get(self, path: str) -> dict:
        url = urlparse(path)
        if url.path == "/healthz":
            return {"status": "ok", "version": "0"}
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path.endswith("/lost_groups"):
            with self._changed:
                return {group: SIZE for group in self.lost if group.startswith(query["prefix"])}
        if url.path.endswith("/groups"):
            if "taken_until" in query:
                ended = dict.fromkeys(self.consumed[: self.consumed_by[int(query["taken_until"])]], SIZE)
            else:
                here = self.before + self.ended if self.hears else self.before
                ended = {"train": here, "baseline": self.baselines_before, "record": self.recorded}[query["mode"]]
            return {group: n for group, n in ended.items() if group.startswith(query["prefix"])}
        with self._changed:
            if "steps_done" in query and self.phase == "collecting":
                steps_done, groups_wanted = int(query["steps_done"]), int(query["groups_wanted"])
                self.steps_done = max(self.steps_done, min(steps_done, self.shown_steps))
                self.consumed_by += [len(self.consumed)] * (self.steps_done + 1 - len(self.consumed_by))
                self._take_steps()
                over = lambda: self.steps_done >= steps_done or self.groups_wanted > groups_wanted  # noqa: E731
                self._changed.wait_for(over, float(query["timeout_s"]))
            return {
                "phase": self.phase,
                "detail": "by the test",
                "steps_done": self.steps_done,
                "max_staleness": self.max_staleness,
                "group_size": SIZE,
                "needs_baseline": self.needs_baseline,
                "shown_steps": [[1, self.shown_steps]] if self.shown_steps else [],
                "groups_per_step": self.groups_per_step,
                "groups_wanted": self.groups_wanted,
                "dynamic_sampling": self.dynamic_sampling,
                "live_version": self.steps_done,
                "problems": self.problems,
                "steps": [
                    {
                        "step": step,
                        "state": "skipped" if self.skips else "trained",
                        "metrics": {"reward/mean": self.reward_means[step]} if step in self.reward_means else {},
                    }
                    for step in range(1, self.steps_done + 1)
                ],
            }


@pytest.fixture
def serve() -> Iterator:
    servers = []

    def start(daemon: Daemon) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/lightning/runs/"):
                    return self._hold()
                try:
                    self._answer(json.dumps(daemon.get(self.path)).encode())
                except LookupError as error:
                    self._answer(json.dumps({"error": {"message": error.args[0]}}).encode(), 404)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._answer(b"")

            def _answer(self, body: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _hold(self) -> None:
                daemon.runs.append(self.path.split("/")[3])
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.rfile.read()  # until the runner goes

            def log_message(self, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    lt.shutdown()  # else the next test's client waits for this one's daemon
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize("what", ["train", "evaluate"])
def test_no_attempt_begins_while_the_engine_starts(serve, monkeypatch, caplog, what) -> None:
    daemon, asked, phases = Daemon(None), threading.Event(), set()
    daemon.phase = "starting"
    monkeypatch.setattr(daemon_client, "_AGAIN_S", 0.01)
    monkeypatch.setattr(daemon_client.DaemonClient, "policy", asks(daemon_client.DaemonClient.policy, asked))

    def attempt(task: Task) -> float:
        phases.add(daemon.phase)
        return 1.0

    def started() -> None:
        asked.wait()
        daemon.phase = "collecting"

    thread = threading.Thread(target=started)
    thread.start()
    runner = Runner("p", attempt, run=RUN, endpoint=serve(daemon), on_event=daemon.on_event)
    runner.train(tasks_of, steps=1) if what == "train" else runner.evaluate(tasks_of(1), stage="before")
    thread.join()
    assert phases == {"collecting"}
    assert caplog.text.count("is starting its engines and trainers") == 1


def asks(policy, asked: threading.Event):
    """Return ``policy``, which sets an event after it was asked three times."""
    count = itertools.count(1)

    def of_client(client) -> dict:
        status = policy(client)
        if next(count) == 3:
            asked.set()
        return status

    return of_client


@pytest.mark.parametrize("max_staleness", [None, 0, 1, 3])
def test_attempts_are_started_at_most_that_many_steps_ahead(serve, max_staleness) -> None:
    daemon = Daemon(max_staleness)
    begun: Counter[tuple[int, str]] = Counter()
    ahead: list[int] = []

    def attempt(task: Task) -> float:
        ahead.append(task.step - 1 - daemon.steps_done)
        begun[task.step, task.id] += 1
        return 1.0

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks_of, steps=5)
    assert begun == {(step, task.id): SIZE for step in range(1, 6) for task in tasks_of(step)}
    assert max(ahead) <= (max_staleness or 0)


def test_rows_of_a_dataset_are_tasks(serve, monkeypatch) -> None:
    monkeypatch.setattr(daemon_client, "_POLL_S", 0.05)
    daemon = Daemon(None)
    rows: list[dict[str, Any]] = [{"id": 7, "question": "2+2?"}, {"q": "b"}]
    url, seen = serve(daemon), []

    def attempt(row: dict[str, Any]) -> float:
        seen.append(json.dumps(row))
        row.clear()  # names are given before
        return 1.0

    runner = Runner("p", attempt, run=RUN, endpoint=url, on_event=daemon.on_event, concurrency=1)
    runner.train(lambda step: rows, steps=1)
    assert daemon.ended == {f"{RUN}/step-1/7": SIZE, f"{RUN}/step-1/task-141f76ad3b73": SIZE}
    evaluated = runner.evaluate(rows, stage="e")
    assert [attempt.task_id for attempt in evaluated] == ["7", "task-141f76ad3b73"]
    assert seen[-2:] == [json.dumps(row) for row in rows]
    assert runner.record(rows, attempts=1)[0].task_id == "7"
    with pytest.raises(LightningError, match=r"has no 'id', and is not JSON.*give it an id"):
        runner.evaluate([{"q": Path()}], stage="e")


@pytest.mark.parametrize("max_staleness", [None, 1])
def test_steps_that_are_shown_a_file_have_no_attempts(serve, max_staleness) -> None:
    daemon = Daemon(max_staleness, shown_steps=2)
    begun: Counter[int] = Counter()

    def attempt(task: Task) -> float:
        begun[task.step] += 1
        return 1.0

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks_of, steps=4)
    assert begun == {3: GROUPS * SIZE, 4: GROUPS * SIZE}


def test_a_steps_times_count_from_the_step_before_it_however_often_the_daemon_is_asked(serve, monkeypatch) -> None:
    monkeypatch.setattr(daemon_client, "_POLL_S", 0.05)

    class Slow(Daemon):
        """Takes 0.4 s to train a step."""

        def _take_steps(self) -> None:
            threading.Timer(0.4, self._trained).start()

        def _trained(self) -> None:
            with self._changed:
                super()._take_steps()
                self._changed.notify_all()

    daemon, steps = Slow(max_staleness=None), []
    began = time.monotonic()

    def attempt(task: Task) -> float:
        time.sleep(0.1)
        return 1.0

    def on_event(event: object) -> None:
        if isinstance(event, StepEnded):
            steps.append(event)
        else:
            daemon.on_event(event)

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=on_event).train(tasks_of, steps=3)
    assert all(step.rollout_s >= 0.1 for step in steps)
    assert sum(step.rollout_s + step.wait_s for step in steps) == pytest.approx(time.monotonic() - began, abs=0.5)


def test_a_slow_attempt_holds_up_nobody(serve) -> None:
    daemon = Daemon(max_staleness=2)
    release = threading.Event()
    slow = threading.Lock()
    steps: list[int] = []

    def attempt(task: Task) -> float:
        if (task.step, task.id) == (1, "task-0") and slow.acquire(blocking=False):
            assert release.wait(20.0)
        return 0.5

    def on_event(event: object) -> None:
        daemon.on_event(event)
        if isinstance(event, StepEnded):
            steps.append(event.step)
            if event.step == 2:
                release.set()

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=on_event).train(tasks_of, steps=4)
    assert release.is_set(), "two steps were trained while the attempt hung"
    assert steps == [1, 2, 3, 4]


def test_an_interrupted_run_starts_only_what_the_daemon_lacks(serve) -> None:
    daemon = Daemon(max_staleness=1)
    daemon.before.update(
        {
            f"{RUN}/step-1/task-0": 3,
            f"{RUN}/step-1/task-1": 1,
            f"{RUN}/step-2/task-0": 3,
            f"{RUN}/step-2/task-1": 3,
            "other/step-1/task-1": 2,
            "other/step-3/task-0": 3,
        }
    )
    # One group of each run is what the first step was made of; the rest waits.
    daemon.steps_done, daemon.consumed = 1, [f"{RUN}/step-1/task-0", "other/step-3/task-0"]
    daemon.complete = [*daemon.consumed, f"{RUN}/step-2/task-0", f"{RUN}/step-2/task-1"]
    daemon.consumed_by = [0, 2]
    begun: Counter[tuple[int, str]] = Counter()

    def attempt(task: Task) -> None:
        begun[task.step, task.id] += 1

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks_of, steps=3)
    assert begun == {(1, "task-1"): 2, (3, "task-0"): 3, (3, "task-1"): 3}


@pytest.mark.parametrize("begun_before", [0, 2])
@pytest.mark.parametrize("groups_per_step", [1, 2, 3, 4])
def test_a_run_whose_groups_per_step_changes_begins_as_many_groups_as_a_step_lacks(
    serve, groups_per_step, begun_before
) -> None:
    """Steps of two groups at first: counted in the present size, they were too few or too many for good."""
    daemon = Daemon(max_staleness=None, groups_per_step=groups_per_step)
    daemon.hears = False  # the second part is to find what the first one did
    made = [f"{RUN}/step-{step}/task-{number}" for step in range(1, 5) for number in range(GROUPS)]
    daemon.steps_done, daemon.consumed, daemon.consumed_by = 3, made[:6], [0, 2, 4, 6]
    daemon.complete = made[: 6 + begun_before]
    daemon.before.update(dict.fromkeys(daemon.complete, SIZE))
    begun: Counter[tuple[int, str]] = Counter()

    def attempt(task: Task) -> None:
        begun[task.step, task.id] += 1

    def tasks(step: int) -> list[Task]:
        return [Task(f"task-{number}", step) for number in range(groups_per_step)]

    def train(steps: int) -> None:
        Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks, steps=steps)

    train(4)
    assert len(begun) == max(0, groups_per_step - begun_before)
    train(7)
    assert len(begun) == 4 * groups_per_step - begun_before
    assert set(begun.values()) == {SIZE}
    assert all(step > 3 for step, _ in begun)


class HardOnes(Curriculum[Task]):
    """Writes down what it is told, and chooses the tasks with the highest numbers unless others were started."""

    def __init__(self) -> None:
        super().__init__(lambda task: task.id)
        self.told: list[tuple[str, float]] = []

    def saw(self, task: Task, reward: float) -> None:
        self.told.append((task.id, reward))

    def choose(self, candidates, count, *, started=()):
        return sorted(candidates, key=lambda task: (task.id in started, task.id))[-count:]


def test_a_curriculum_is_told_of_training_alone_and_goes_on_with_what_it_had_started(serve) -> None:
    daemon = Daemon(max_staleness=None)
    daemon.before[f"{RUN}/step-1/task-1"] = 1
    begun: Counter[tuple[int, str]] = Counter()
    curriculum = HardOnes()

    def attempt(task: Task) -> float | None:
        begun[task.step, task.id] += 1
        return None if task.step == 2 and begun[task.step, task.id] == 1 else 0.5

    def candidates(step: int) -> list[Task]:
        return [Task(f"task-{number}", step) for number in range(5)]

    runner = Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event, curriculum=curriculum)
    runner.evaluate([Task("held-out", 0)], stage="before")
    runner.train(candidates, steps=2)
    assert begun == {
        (0, "held-out"): 1,
        (1, "task-1"): SIZE - 1,
        (1, "task-4"): SIZE,
        (2, "task-3"): SIZE,
        (2, "task-4"): SIZE,
    }
    # No attempt without a reward, and none of the evaluation.
    assert Counter(task for task, _ in curriculum.told) == {
        "task-1": SIZE - 1,
        "task-3": SIZE - 1,
        "task-4": 2 * SIZE - 1,
    }


@pytest.mark.parametrize(("returned", "sentences"), [(None, 1), (0.0, 0)])
def test_a_curriculum_that_is_told_of_no_reward_is_said_once(serve, caplog, returned, sentences) -> None:
    daemon = Daemon(max_staleness=None)

    def attempt(task: Task) -> float | None:
        lt.reward(1.0, "score")  # which the runner does not see
        return returned

    def train(**options) -> None:
        runner = Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event, **options)
        runner.train(tasks_of, steps=daemon.steps_done + 2)

    train()
    train(curriculum=Curriculum[Task](lambda task: task.id))
    said = [record.getMessage() for record in caplog.records if "curriculum" in record.getMessage()]
    assert len(said) == sentences
    assert all(one.startswith("the curriculum saw no reward in step 3: it learns from what") for one in said)


@pytest.mark.parametrize("max_staleness", [None, 2])
def test_a_step_that_wants_more_groups_gets_those_of_the_next_one(serve, max_staleness) -> None:
    """Dynamic sampling: without this the step waited for its time-out, and the runner for the step."""
    useless = frozenset(
        f"{RUN}/{group}" for group in ("step-1/task-0", "step-2/task-1", "step-3/task-0", "step-3/task-1")
    )
    daemon = Daemon(max_staleness, useless=useless)
    runner = Runner("p", lambda task: 1.0, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event)
    runner.train(tasks_of, steps=3)
    assert daemon.steps_done == 3
    teaching = [group for group in daemon.consumed if group not in useless]
    assert len(teaching) == 3 * GROUPS
    # Two steps' worth of groups taught nothing; what was started beyond that is less than a step and what is ahead.
    assert len(daemon.ended) <= 5 * GROUPS + (max_staleness or 0) * GROUPS


_POLLING = """
import os, signal, sys
from lightning_trainer.rollouts import Runner
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job has not

class Task:
    def __init__(self, number):
        self.id = f"task-{number}"

def attempt(task):
    if task.id == "task-1":
        os.write(1, b"polling\\n")  # in one piece: several attempts say it at once
        import time; time.sleep(600)
    return 1.0

Runner("p", attempt, endpoint=sys.argv[1]).train(lambda step: [Task(0), Task(1)], steps=5)
"""


@pytest.mark.process
def test_ctrl_c_is_one_line_and_status_130(serve) -> None:
    program = [sys.executable, "-c", _POLLING, serve(Daemon(0))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        polling = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert polling == "polling\n"
    assert process.returncode == 130
    first, *others = errors.splitlines()
    assert first == "interrupted: what has ended is recorded; start it again to go on from there"
    # An attempt that ends while the program does is given up with its span, and the client says so.
    assert all(line.startswith("a span ended after lt.shutdown() and is lost") for line in others), errors


def test_a_failed_attempt_is_made_again_and_the_last_one_counts(serve) -> None:
    daemon = Daemon(None)
    events: list[AttemptEnded] = []
    tried: Counter[str] = Counter()

    def attempt(task: Task) -> float:
        tried[task.id] += 1
        if task.id == "task-0" and tried[task.id] % 2:
            raise ConnectionError("the tool was away")
        if task.id == "task-1":
            raise ValueError("never works")
        return 1.0

    def on_event(event: object) -> None:
        daemon.on_event(event)
        if isinstance(event, AttemptEnded):
            events.append(event)

    Runner("p", attempt, endpoint=serve(daemon), concurrency=1, retries=1, run=RUN, on_event=on_event).train(
        tasks_of, steps=1
    )
    assert Counter((event.stage, event.task_id, event.error is None) for event in events) == {
        ("retried", "task-0", False): SIZE,
        ("train", "task-0", True): SIZE,
        ("retried", "task-1", False): SIZE,
        ("train", "task-1", False): SIZE,
    }


def test_a_policy_that_needs_baselines_gets_one_a_group_beside_its_attempts(serve) -> None:
    daemon = Daemon(max_staleness=1, needs_baseline=True)
    daemon.before.update({f"{RUN}/step-1/task-0": 3, f"{RUN}/step-1/task-1": 1})
    daemon.baselines_before.update({f"{RUN}/step-1/task-1": 1})
    daemon.reward_means = {1: 0.25, 2: 0.75}
    begun: Counter[tuple[str, int, str]] = Counter()
    events: list[object] = []

    def runs(what: str, reward: float):
        def attempt(task: Task) -> float:
            begun[what, task.step, task.id] += 1
            return reward

        return attempt

    def on_event(event: object) -> None:
        events.append(event)
        daemon.on_event(event)

    runner = Runner(
        "p", runs("sampled", 1.0), baseline=runs("greedy", 0.0), endpoint=serve(daemon), run=RUN, on_event=on_event
    )
    runner.train(tasks_of, steps=2)
    assert begun == {
        ("greedy", 1, "task-0"): 1,
        ("sampled", 1, "task-1"): 2,
        **{("sampled", 2, task.id): SIZE for task in tasks_of(2)},
        **{("greedy", 2, task.id): 1 for task in tasks_of(2)},
    }
    stages = Counter(event.stage for event in events if isinstance(event, AttemptEnded))
    assert stages == {"train": 8, "baseline": 3}
    assert [event.reward_mean for event in events if isinstance(event, StepEnded)] == [0.25, 0.75], "of what is trained"


def test_a_policy_that_needs_baselines_and_a_runner_without_is_refused_in_a_sentence(serve) -> None:
    runner = Runner("p", lambda task: 1.0, endpoint=serve(Daemon(None, needs_baseline=True)))
    with pytest.raises(LightningError, match=r"give it one as Runner\(policy, attempt, baseline=greedy_attempt\)"):
        runner.train(tasks_of, steps=1)


def test_a_baseline_that_nobody_needs_is_not_run(serve) -> None:
    daemon, ran = Daemon(None), []
    runner = Runner(
        "p", lambda task: 1.0, baseline=ran.append, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event
    )
    runner.train(tasks_of, steps=1)
    assert ran == []


def test_what_a_step_was_like_is_said_once_for_each(serve) -> None:
    daemon = Daemon(max_staleness=None)
    events: list[StepEnded] = []

    def on_event(event: object) -> None:
        daemon.on_event(event)
        if isinstance(event, StepEnded):
            events.append(event)

    daemon.reward_means = {2: 0.5}  # nothing of the first step was scored
    runner = Runner("p", lambda task: None, endpoint=serve(daemon), run=RUN, on_event=on_event)
    runner.train(tasks_of, steps=2)
    assert [(event.step, event.reward_mean) for event in events] == [(1, None), (2, 0.5)]
    assert all(event.rollout_s >= 0 and event.wait_s >= 0 for event in events)


@pytest.mark.parametrize("max_staleness", [None, 2])
def test_a_run_in_which_nothing_works_ends_at_its_first_step(serve, max_staleness) -> None:
    # Before: it used up all its steps, and the next start had none left to train.
    daemon = Daemon(max_staleness)
    daemon.skips = True

    def attempt(task: Task) -> float:
        raise ValueError("there is no key")

    runner = Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event)
    with pytest.raises(
        TrainingError, match=r"all 6 attempts of step \d failed .* first with: ValueError: there is no key"
    ):
        runner.train(tasks_of, steps=20)
    assert daemon.steps_done <= 1 + (max_staleness or 0)


@pytest.mark.parametrize(("skips", "working"), [(False, ""), (True, "task-1")])
def test_failed_attempts_that_were_trained_and_a_step_in_which_some_work_end_no_run(serve, skips, working) -> None:
    daemon = Daemon(None)
    daemon.skips = skips

    def attempt(task: Task) -> float:
        if task.id != working:
            raise ValueError("wrong")
        return 0.0

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks_of, steps=3)
    assert daemon.steps_done == 3


def test_what_the_daemon_finds_wrong_during_the_run_is_said_once(serve, caplog) -> None:
    daemon = Daemon(None)
    daemon.problems = ["of an earlier run"]

    def on_event(event: object) -> None:
        if isinstance(event, AttemptEnded):
            daemon.problems = ["of an earlier run", "policy p claims the agents a, and none of 6 calls is theirs"]
        daemon.on_event(event)

    Runner("p", lambda task: 1.0, endpoint=serve(daemon), run=RUN, on_event=on_event).train(tasks_of, steps=3)
    assert [record.getMessage() for record in caplog.records if record.name.endswith("step_watch")] == [
        "policy p claims the agents a, and none of 6 calls is theirs"
    ]


def test_a_run_whose_steps_are_done_already_says_so(serve, caplog) -> None:
    # Before: it ended without a word, such as a second one with another seed.
    daemon, tried = Daemon(None), []
    runner = Runner("p", tried.append, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event)
    assert runner.steps_done() == 0
    runner.train(tasks_of, steps=1)
    assert (runner.steps_done(), len(tried)) == (1, GROUPS * SIZE)
    assert "already; steps=1" not in caplog.text
    runner.train(tasks_of, steps=1)
    assert len(tried) == GROUPS * SIZE
    assert "1 steps are done already; steps=1 is their total" in caplog.text


def test_tasks_that_do_not_make_a_step_are_refused_in_a_sentence(serve) -> None:
    runner = Runner("p", lambda task: 1.0, endpoint=serve(Daemon(None)))
    with pytest.raises(LightningError, match=r"step 1 has 1 different tasks, but the policy's groups_per_step is 2"):
        runner.train(lambda step: tasks_of(step)[:1], steps=1)
    with pytest.raises(LightningError, match=r"step 1 has 3 tasks with 2 different ids, but the policy's groups_per"):
        runner.train(lambda step: [*tasks_of(step), tasks_of(step)[0]], steps=1)


def test_tasks_may_come_from_a_generator(serve) -> None:
    daemon = Daemon(None)
    runner = Runner("p", lambda task: 1.0, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event)
    runner.train(lambda step: (task for task in tasks_of(step)), steps=1)  # pyright: ignore[reportArgumentType]
    assert daemon.steps_done == 1


def test_training_that_has_stopped_ends_the_run_with_its_reason(serve) -> None:
    daemon = Daemon(None)
    daemon.phase = "paused"
    began = time.monotonic()
    with pytest.raises(TrainingError, match="step 1 will not come: training is paused: by the test"):
        Runner("p", lambda task: time.sleep(30), endpoint=serve(daemon)).train(tasks_of, steps=1)
    assert time.monotonic() - began < 15, "what hangs is not waited for"


def test_a_run_whose_groups_another_run_finds_taken_first_goes_on_with_its_own(serve) -> None:
    """Two runs of one policy: a step takes groups of the other, and this one still has enough on their way."""
    daemon = Daemon(None)
    names = [f"other/step-{step}/task-{number}" for step in (1, 2) for number in range(GROUPS)]
    taken_early = threading.Event()
    begun: Counter[int] = Counter()

    def attempt(task: Task) -> float:
        begun[task.step] += 1
        if not taken_early.is_set():  # the other run is faster
            taken_early.set()
            daemon.bring(names[:3])
        return 1.0

    Runner("p", attempt, endpoint=serve(daemon), concurrency=1, run=RUN, on_event=daemon.on_event).train(
        tasks_of, steps=3
    )
    # Three groups of the other run, so one step is of both; the rest of what was begun is complete for a later one.
    assert daemon.steps_done >= 3
    ended = Counter(group.partition("/")[0] for group in daemon.complete)
    assert ended == {"other": 3, RUN: sum(begun.values()) // SIZE}
    assert set(begun.values()) == {GROUPS * SIZE}, "every group that was begun is whole"
    daemon.bring(names[3:])
    assert len(daemon.consumed) == len(daemon.complete), "nothing is left over"


@pytest.mark.parametrize("max_staleness", [None, 1])
def test_a_run_whose_groups_are_dropped_one_after_the_other_ends_in_a_sentence(
    serve, max_staleness, monkeypatch
) -> None:
    monkeypatch.setattr(daemon_client, "_POLL_S", 0.01)
    daemon = Daemon(max_staleness)
    begun: Counter[tuple[int, str]] = Counter()

    def attempt(task: Task) -> float:
        begun[task.step, task.id] += 1
        group = f"{RUN}/step-{task.step}/{task.id}"
        daemon.ended[group] += 1
        daemon.lost.add(group)
        return 1.0

    with pytest.raises(TrainingError, match=r"step 1 will not come: 2[1-9] groups of the run were dropped or deleted"):
        Runner("p", attempt, endpoint=serve(daemon), run=RUN).train(tasks_of, steps=2)
    assert len(begun) <= 14 * GROUPS


def test_a_group_that_was_taken_before_it_was_whole_gets_no_more_attempts(serve) -> None:
    daemon = Daemon(None)
    daemon.before.update({f"{RUN}/step-1/task-0": 1, f"{RUN}/step-1/task-1": 1})
    daemon.steps_done, daemon.consumed_by = 1, [0, 2]
    daemon.consumed = [f"{RUN}/step-1/task-0", "other/step-1/task-0"]
    daemon.complete = list(daemon.consumed)
    begun: Counter[tuple[int, str]] = Counter()

    def attempt(task: Task) -> None:
        begun[task.step, task.id] += 1

    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks_of, steps=2)
    assert begun == {(1, "task-1"): 2, (2, "task-0"): 3, (2, "task-1"): 3}


def test_an_attempt_belongs_to_a_group_of_its_run(serve) -> None:
    groups: set[str | None] = set()

    def attempt(task: Task) -> float:
        identity = current().identity
        assert identity is not None
        groups.add(identity.group_id)
        return 1.0

    daemon = Daemon(None)
    Runner("p", attempt, endpoint=serve(daemon), run=RUN, on_event=daemon.on_event).train(tasks_of, steps=1)
    Runner("p", attempt, endpoint=serve(daemon), run=RUN).evaluate(tasks_of(1)[:1], stage="held-out")
    assert groups == {f"{RUN}/step-1/task-0", f"{RUN}/step-1/task-1", f"{RUN}/held-out/task-0"}
    assert daemon.runs == [RUN]


def test_an_evaluation_is_in_the_order_of_its_tasks(serve) -> None:
    tasks = [Task(f"{number}", 0) for number in range(20)]

    def attempt(task: Task) -> float:
        time.sleep(0.01 if int(task.id) % 2 else 0.0)
        return float(task.id)

    ended = Runner("p", attempt, endpoint=serve(Daemon(None)), concurrency=4).evaluate(tasks, stage="before")
    assert [attempt.reward for attempt in ended] == [float(task.id) for task in tasks]


@pytest.mark.parametrize(("concurrency", "retries"), [(0, 0), (1, -1)])
def test_a_runner_that_could_run_nothing_is_refused(concurrency: int, retries: int) -> None:
    with pytest.raises(LightningError, match="at least 1 attempt runs at once"):
        Runner("p", lambda task: None, endpoint="http://127.0.0.1:9", concurrency=concurrency, retries=retries)


def test_an_evaluation_waits_for_a_daemon_that_is_starting() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "ok", "version": "0"}')

        def log_message(self, *_: object) -> None: ...

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answered: list[float] = []

    def daemon() -> None:
        time.sleep(1)
        with HTTPServer(("127.0.0.1", port), Handler) as server:
            answered.append(time.monotonic())
            server.handle_request()

    def attempt(_: Task) -> float:
        return float(bool(answered))

    thread = threading.Thread(target=daemon)
    thread.start()
    # Of no policy, so nothing but its health is asked for.
    ended = Runner((), attempt, endpoint=f"http://127.0.0.1:{port}").evaluate([Task("a", 0)], stage="before")
    thread.join()
    assert [one.reward for one in ended] == [1.0]


def test_an_evaluation_of_a_policy_that_is_not_there_does_not_begin(serve) -> None:
    # Before: every task was tried, and what was wrong was said when training began.
    class Other(Daemon):
        def get(self, path: str) -> dict:
            if path.endswith("/misspelled"):
                raise LookupError("there is no policy 'misspelled'")
            return super().get(path)

    tried: list[Task] = []
    endpoint = serve(Other(None))
    for policy in ("misspelled", ["p", "misspelled"]):
        with pytest.raises(LightningError, match="there is no policy 'misspelled'"):
            Runner(policy, tried.append, endpoint=endpoint).evaluate([Task("a", 0)], stage="before")
    assert not tried
    assert Runner("p", lambda task: 1.0, endpoint=endpoint).evaluate([Task("a", 0)], stage="before")[0].reward == 1.0


@pytest.fixture
def afresh(tmp_path: Path, monkeypatch) -> Iterator[None]:
    """A client that nothing has started."""
    monkeypatch.delenv("LIGHTNING_ENDPOINT", raising=False)
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    monkeypatch.setattr(daemon_client, "_POLL_S", 0.05)
    lt.shutdown(0)
    yield
    lt.shutdown(0)


def test_a_run_that_is_recorded_elsewhere_ends_in_a_sentence(serve, afresh) -> None:
    # Before: it waited for its first step for ever.
    daemon, elsewhere = Daemon(None), serve(Daemon(None))
    daemon.hears = False
    daemon.before.update({f"{RUN}/step-1/task-0": 1})  # of an earlier part of the run, which was recorded here
    endpoint = serve(daemon)
    lt.init(elsewhere)
    with lt.rollout("something"):
        pass
    with pytest.raises(LightningError) as refused:
        Runner("p", lambda task: 1.0, run=RUN, endpoint=endpoint).train(tasks_of, steps=1)
    assert re.fullmatch(
        rf"the daemon at {endpoint} has received none of the \d attempts that have ended: this "
        rf"program records for {elsewhere}; give the Runner and lt.init\(...\) the same endpoint, .*",
        str(refused.value),
    )


def test_a_run_whose_spans_are_lost_ends_in_a_sentence(serve, afresh, monkeypatch) -> None:
    daemon = Daemon(None)
    daemon.hears = False
    monkeypatch.setenv("LIGHTNING_ENDPOINT", serve(daemon))

    def attempt(task: Task) -> float:
        lt.shutdown(0)
        return 1.0

    with pytest.raises(LightningError, match=r"none of the \d attempts .* spans were lost or refused, or it called lt"):
        Runner("p", attempt, run=RUN).train(tasks_of, steps=1)


def test_a_run_waits_for_attempts_that_are_on_their_way(serve, afresh, monkeypatch) -> None:
    daemon = Daemon(None)
    daemon.hears = False
    on_their_way = iter([False, False])

    def flush(timeout_s: float) -> bool:
        daemon.hears = next(on_their_way, True)
        return daemon.hears

    def on_event(event: object) -> None:
        daemon.ended[f"{RUN}/step-1/task-0"] += isinstance(event, AttemptEnded)

    monkeypatch.setattr(lt, "flush", flush)
    runner = Runner("p", lambda task: 1.0, run=RUN, endpoint=serve(daemon), on_event=on_event)
    train = threading.Thread(target=runner.train, args=(tasks_of,), kwargs={"steps": 1})
    train.start()
    while not daemon.hears:
        time.sleep(0.01)
    daemon.bring(["other/1", "other/2"])
    train.join(20)
    assert daemon.steps_done == 1


def test_a_program_that_records_nothing_is_refused_before_its_first_attempt(serve, afresh, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr("lightning_instrumentation.runtime._unusable", False)
    tried: list[Task] = []
    runner = Runner("p", tried.append, run=RUN, endpoint=serve(Daemon(None)))
    with pytest.raises(LightningError, match="OTEL_SDK_DISABLED is set, so this program records nothing"):
        runner.train(tasks_of, steps=1)
    assert not tried


def test_a_runner_of_no_policy_trains_nothing() -> None:
    with pytest.raises(
        LightningError, match=r"there is no policy to train; name it, as in Runner\('my-policy', attempt\)"
    ):
        Runner((), lambda task: 1.0, endpoint="http://127.0.0.1:9").train(tasks_of, steps=1)


def test_the_document_runs_as_it_stands(serve, monkeypatch) -> None:
    document = (Path(__file__).parents[3] / "docs" / "rollouts.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL))
    daemon = Daemon(None)
    lt.shutdown(0)  # the client of a test before names its daemon
    monkeypatch.setenv("LIGHTNING_ENDPOINT", serve(daemon))
    monkeypatch.setattr(rollouts, "Runner", partial(Runner, run=RUN, on_event=daemon.on_event))
    asked: list[str] = []

    async def my_async_agent(question: str) -> str:
        asked.append(question)
        return "4"

    exec(code, {"my_agent": lambda question: "4", "my_async_agent": my_async_agent, "__name__": "document"})
    assert daemon.steps_done == 20
    assert asked == ["3+1?"]
    (text,) = re.findall(r"```toml\n(.*?)```", document, flags=re.DOTALL)
    (policy,) = tomllib.loads(text)["policy"]
    named = {"name": "p", "agents": ["a"], "model": "random:tiny"}
    assert PolicyConfig.model_validate({**named, **policy}).max_staleness == 2
