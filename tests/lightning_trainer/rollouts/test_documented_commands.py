"""The commands of docs/rollouts.md are taken as they stand."""

import json
import os
import re
import shlex
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from typer.testing import CliRunner

from lightning_trainer.cli import rollouts
from lightning_trainer.cli.app import app
from lightning_trainer.cli.rollouts import Options
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import AttemptEnded, Runner
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.environment.runner import EnvironmentRunner
from lightning_trainer.rollouts.task_file import read_tasks

DOCUMENT = (Path(__file__).parents[3] / "docs" / "rollouts.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ lightning-trainer (rollouts .*)$", DOCUMENT, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def afresh() -> None:
    """No client of a test before, with a token of its own."""
    lt.shutdown(0)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_taken(command: str, monkeypatch) -> None:
    taken: list[Options] = []
    monkeypatch.setattr(rollouts, "rollouts", taken.append)
    done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (options,) = taken
    assert options.command == ("python", "agent.py")
    assert [options.steps, options.evaluate, options.record].count(None) == 2


def test_there_are_four_of_them() -> None:
    assert len(COMMANDS) == 4


def test_a_curriculum_needs_its_field_in_every_task(tmp_path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "level": 1}\n{"id": "b"}\n')
    command = f"rollouts --policy p --tasks {tasks} --steps 1 --curriculum level -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "task 'b' has no field 'level', which --curriculum tells kinds of tasks by" in done.stderr


def test_an_environments_tasks_have_no_fields_to_choose_by() -> None:
    command = "rollouts --policy p --environment frozenlake:4x4 --steps 1 --curriculum level"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "--curriculum tells tasks of --tasks apart by a field" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--steps 1", "--policy game@v0 is a version of a policy, which is evaluated and never trained"),
        ("--evaluate before -- python agent.py", "have the program ask for the model 'game@v0', and name the policy"),
    ],
)
@pytest.mark.parametrize("source", ["--environment frozenlake:4x4", "--tasks tasks.jsonl"])
def test_only_our_own_agent_plays_an_old_version_and_only_to_be_evaluated(options, sentence, source) -> None:
    command = f"rollouts --policy game@v0 {source} {options}"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_an_old_version_is_one_of_a_policy_of_the_configuration(tmp_path) -> None:
    config = tmp_path / "lightning.toml"
    config.write_text('[[policy]]\nname = "game"\nagents = ["game"]\nmodel = "random:tiny"\n')
    options = Options((), None, "game@v0", None, "before", "http://127.0.0.1:9", None, 8, 120.0, 0, 0, config=config)
    assert rollouts.placed(options).policy == "game@v0"
    with pytest.raises(ConfigError, match="'gone' is not one of them"):
        rollouts.placed(replace(options, policy="gone@v0"))


@pytest.mark.parametrize(("failed", "status"), [(1, 0), (2, 1)])
def test_an_evaluation_in_which_every_attempt_failed_has_failed(failed, status, tmp_path, monkeypatch) -> None:
    class Evaluating(Runner):
        def evaluate(self, tasks, *, stage, journal=None):
            errors = [None if number >= failed else "it was not there" for number in range(len(tasks))]
            return [
                AttemptEnded(stage, None, task.id, None if error else 1.0, 0.1, error)
                for task, error in zip(tasks, errors, strict=True)
            ]

    monkeypatch.setattr(rollouts, "Runner", Evaluating)
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b"}\n')
    command = f"rollouts --tasks {path} --evaluate held-out -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "200"})
    assert done.exit_code == status, done.output
    assert f"over {2 - failed} of 2 tasks; {failed} failed" in done.output
    assert ("held-out: every attempt failed" in done.output) is (status == 1)


@pytest.mark.parametrize(("tasks", "candidates"), [(40, 8), (6, 6), (2, 2)])
def test_a_curriculum_chooses_from_four_times_as_many_tasks_as_a_step_takes_if_there_are(
    tasks, candidates, tmp_path, monkeypatch
) -> None:
    offered: list[int] = []

    class Choosing(Runner):
        def train(self, tasks_of_step=None, *, steps):
            assert tasks_of_step is not None
            assert self._curriculum is not None
            offered.append(len(tasks_of_step(1)))
            chosen = self._curriculum.choose(tasks_of_step(1), 2)
            assert len({task.id for task in chosen}) == 2

    monkeypatch.setattr(rollouts, "Runner", Choosing)
    status = {"groups_per_step": 2, "group_size": 4, "steps_done": 0}
    monkeypatch.setattr(DaemonClient, "policy", lambda self: status)
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"id": "{number}", "level": [{number % 3}]}}\n' for number in range(tasks)))
    command = f"rollouts --policy p --tasks {path} --steps 1 --curriculum level -- python agent.py"
    CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert offered == [candidates]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "say what the rollouts are for: --steps N to train, --evaluate NAME, or --record N"),
        ("--evaluate ''", "say what the rollouts are for"),
        ("--steps 1 --evaluate a", "say what the rollouts are for"),
        ("--steps 1 --endpoint nowhere", "the endpoint 'nowhere' is not an http(s) URL"),
        ("--steps 1", "cannot read the tasks none.jsonl"),
        (
            "--evaluate a --curriculum level",
            "--curriculum chooses tasks to train on; --evaluate and --record try every",
        ),
        ("--record 8 --evaluate a", "say what the rollouts are for"),
        ("--record 8 --steps 1", "--steps N to train, --evaluate NAME, or --record N to make a dataset"),
    ],
)
def test_a_mistake_is_one_sentence(options: str, sentence: str) -> None:
    command = f"rollouts --policy p --tasks none.jsonl {options} -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_the_configuration_says_where_the_daemon_is_its_token_and_its_only_policy(tmp_path, monkeypatch) -> None:
    # Before: "No such option: --config"
    monkeypatch.setenv("LIGHTNING_TOKEN", "")
    monkeypatch.delenv("LIGHTNING_TOKEN")
    monkeypatch.delenv("LIGHTNING_ENDPOINT", raising=False)
    config = tmp_path / "lightning.toml"
    config.write_text(
        f'[daemon]\nport = 9123\nstate_dir = "{tmp_path}"\ntoken = "a-token-of-this-test"\n'
        '[[policy]]\nname = "math"\nagents = ["*"]\nmodel = "random:tiny"\n'
    )
    options = Options(("sh",), tmp_path / "t", None, 1, None, None, None, 1, 1.0, 0, 0, config=config)
    placed = rollouts.placed(options)
    assert (placed.endpoint, placed.policy) == ("http://127.0.0.1:9123", "math")
    assert os.environ["LIGHTNING_TOKEN"] == "a-token-of-this-test"
    elsewhere = rollouts.placed(replace(options, endpoint="http://gpu-box:1", policy="math"))
    assert elsewhere.endpoint == "http://gpu-box:1"


def test_without_a_policy_and_a_configuration_one_is_asked_for() -> None:
    done = CliRunner().invoke(app, shlex.split("rollouts --tasks t --steps 1 -- sh"), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "name it with --policy NAME, or the daemon's configuration with --config FILE" in done.stderr


class _Answers(BaseHTTPRequestHandler):
    status, body, kind = 200, b"<html>hello</html>", "text/html"

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        # Before: a traceback, or "URL: 404: <html>..."
        (
            200,
            b"<html>hello</html>",
            "is not a lightning-trainer daemon (its answer is not a JSON object): check --endpoint",
        ),
        (404, b"<html>not found</html>", "is not a lightning-trainer daemon (it answered 404): check --endpoint"),
        (401, b'{"error": {"message": "the token"}}', "the daemon refuses the token: set LIGHTNING_TOKEN to [daemon]"),
        (404, b'{"error": {"message": "there is no policy \'p\'"}}', "the daemon answered 404: there is no policy 'p'"),
    ],
)
def test_another_service_and_a_wrong_token_are_told_from_no_daemon(tmp_path, status, body, sentence) -> None:
    handler = type("Handler", (_Answers,), {"status": status, "body": body})
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        command = f"rollouts --policy p --tasks {tmp_path}/tasks.jsonl --steps 1 --endpoint http://127.0.0.1:"
        done = CliRunner().invoke(app, shlex.split(f"{command}{server.server_port} -- sh"), env={"COLUMNS": "300"})
        server.shutdown()
    assert done.exit_code == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        # Before: nothing at all for 300 s
        ({"proof": "of another token"}, "it is a daemon with another token: set LIGHTNING_TOKEN to what"),
        ({"hello": 1}, "it is not a lightning-trainer daemon (it answered 200 to a challenge)"),
    ],
)
@pytest.mark.parametrize("what", ["--policy p --steps 1", "--evaluate held-out"])
def test_what_does_not_prove_itself_is_not_waited_for(tmp_path, monkeypatch, answer, sentence, what) -> None:
    monkeypatch.setenv("LIGHTNING_TOKEN", "mine")
    handler = type("Handler", (_Answers,), {"body": json.dumps(answer).encode()})
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        command = f"rollouts {what} --tasks {tmp_path}/tasks.jsonl --endpoint http://127.0.0.1:{server.server_port}"
        done = CliRunner().invoke(app, shlex.split(f"{command} -- sh"), env={"COLUMNS": "300"})
        server.shutdown()
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_an_evaluation_does_not_begin_at_another_service(tmp_path, monkeypatch) -> None:
    # Before: the program was run for every task, and "no reward was given" was all that was said.
    monkeypatch.setenv("LIGHTNING_TOKEN", "none")
    handler = type("Handler", (_Answers,), {"body": b'{"status": "UP"}'})
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        command = f"rollouts --evaluate e --tasks {tmp_path}/tasks.jsonl --endpoint http://127.0.0.1:"
        done = CliRunner().invoke(app, shlex.split(f"{command}{server.server_port} -- touch {tmp_path}/ran"))
        server.shutdown()
    assert done.exit_code == 2
    assert "is not a lightning-trainer daemon (its answer to /healthz is not a daemon's)" in " ".join(
        done.stderr.split()
    )
    assert not (tmp_path / "ran").exists()


def test_a_daemon_that_is_away_is_waited_for_and_that_is_said_once(caplog) -> None:
    # Before: nothing was said for 300 s.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = DaemonClient(f"http://127.0.0.1:{port}", "p", token="none", patience_s=0.7)
    with pytest.raises(LightningError, match="has not answered for 1 s"):
        client.policy()
    said = [message for message in caplog.messages if "waiting for it, for 1 s at most" in message]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, b'{"error": {"message": "the store cannot be read: the server is restarting"}}'),
        (502, b"<html>Bad Gateway</html>"),
    ],
)
def test_a_daemon_that_cannot_answer_just_now_is_asked_again(status, body, caplog) -> None:
    # Before: a run of hours ended with the first such answer.
    class Handler(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            Handler.asked += 1
            first = Handler.asked == 1
            self.send_response(status if first else 200)
            self.end_headers()
            self.wfile.write(body if first else b'{"phase": "collecting"}')

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = DaemonClient(f"http://127.0.0.1:{server.server_port}", "p", token="none", patience_s=30.0)
        assert client.policy() == {"phase": "collecting"}
        server.shutdown()
    assert f"answered {status}" in caplog.text


@pytest.mark.parametrize("cut_off", [b"", b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"phase":'])
def test_a_daemon_that_is_restarted_while_it_is_asked_is_asked_again(cut_off, caplog) -> None:
    # Before: a run whose daemon was restarted ended, since "it does not speak HTTP": it nearly always waits for a step.
    answers = [cut_off, b'HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\n{"phase": "collecting"}']

    def serve(listening: socket.socket) -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        client = DaemonClient(f"http://127.0.0.1:{listening.getsockname()[1]}", "p", token="none", patience_s=30.0)
        assert client.policy() == {"phase": "collecting"}
        thread.join(20)
    assert "waiting for it" in caplog.text


def test_a_command_that_is_not_there_is_one_sentence() -> None:
    done = CliRunner().invoke(app, shlex.split("rollouts --policy p --tasks t --steps 1 -- no-such-program"))
    assert done.exit_code == 2
    assert "there is no command 'no-such-program' on PATH" in done.stderr


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("", "p:python_agent.py:tasks.jsonl@888fdab8:0"),
        ("--seed 3", "p:python_agent.py:tasks.jsonl@888fdab8:3"),
        ("--run nightly", "nightly"),
    ],
)
def test_a_run_is_called_what_it_is_told_or_by_its_program_tasks_and_seed(options, name, tmp_path, monkeypatch) -> None:
    made: list[str] = []

    class NamedRunner(Runner):
        def evaluate(self, tasks, *, stage, journal=None):
            made.append(self._run)
            return []

    monkeypatch.setattr(rollouts, "Runner", NamedRunner)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a"}\n')
    command = f"rollouts --policy p --tasks {tasks} --evaluate e {options} -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert made == [name]


def test_other_tasks_in_a_file_of_the_same_name_are_another_run(tmp_path) -> None:
    # Before: after an interruption, their attempts shared groups where the tasks' ids were the same.
    paths = [tmp_path / "one" / "tasks.jsonl", tmp_path / "other" / "tasks.jsonl", tmp_path / "tasks.jsonl"]
    for path, task in zip(
        paths, ('{"id": "a", "level": 1}', '{"id": "a", "level": 2}', '{"id": "a", "level": 1}'), strict=True
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(task)
    one, other, moved = (read_tasks(path).label for path in paths)
    assert one.startswith("tasks.jsonl@")
    assert one == moved != other


@pytest.mark.parametrize("played", [False, True])
def test_tasks_come_from_a_pipe_as_well(played: bool, monkeypatch) -> None:
    # Before: it was read again for the run's name, as empty, so all runs of one program had the same groups; and of an
    # environment's tasks none was left.
    tried: dict[str, list[str]] = {}

    def evaluate(self, tasks, *, stage, journal=None):
        tried[self._run] = [task.id for task in tasks]
        return []

    monkeypatch.setattr(Runner, "evaluate", evaluate)
    monkeypatch.setattr(EnvironmentRunner, "evaluate", evaluate)
    worlds = Path(__file__).parents[1] / "environments" / "worlds.py"
    program = f"--environment {worlds}:Alike" if played else "-- python agent.py"
    for level in (1, 2):
        read, write = os.pipe()
        os.write(write, f'{{"id": "a", "level": {level}}}\n{{"id": "b"}}\n'.encode())
        os.close(write)
        command = f"rollouts --policy p --tasks /dev/fd/{read} --evaluate e {program}"
        done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        os.close(read)
        assert done.exit_code == 0, done.output
    assert len(tried) == 2
    assert all(len(tasks) == 2 for tasks in tried.values())


def test_a_run_that_cannot_be_called_so_is_one_sentence(tmp_path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a"}\n')
    command = f"rollouts --policy p --tasks {tasks} --evaluate e --run a/b -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "the run is called 'a/b'" in done.stderr
