"""Look before you train: a daemon without a policy records, and what it recorded is there when a policy is added."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent / "scripts" / "capture_script.py"
POLICY = """
[[policy]]
name = "tiny"
agents = ["writer"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
optimizer.lr = 1e-3
{more}
"""
TRUSTED = """
train_recorded = true
algorithm = {{ rollout_is = "token" }}

[[policy.trusted]]
host = "{host}"
model = "{model}"
version = "unknown"
logprobs = "processed"
"""
HEAVY = ("torch", "verl", "vllm", "ray", "transformers", "numpy")
COMMANDS = f"""
import json, sys
from typer.testing import CliRunner
from lightning_trainer.cli.app import app

said = []
for command in json.load(sys.stdin):
    done = CliRunner().invoke(app, command)
    said.append([done.exit_code, " ".join((done.stdout + done.stderr).split())])
found = [name for name in {HEAVY!r} if name in sys.modules]
assert not found, found
print(json.dumps(said))
"""
"""Commands of ours, one after the other; it fails when one imports what only an engine or a trainer needs."""


class _GivesIds(BaseHTTPRequestHandler):
    """A server that gives token ids and log-probabilities to whoever asks, as vLLM does."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        ids, said = [5, 6, 7], ["ra", "in", "."]
        choice = {"index": 0, "message": {"role": "assistant", "content": "".join(said)}, "finish_reason": "stop"}
        answer = {"id": f"theirs-{id(body)}", "object": "chat.completion", "created": 0, "model": body["model"]}
        if body.get("return_token_ids"):
            answer["prompt_token_ids"] = [1, 2, 3]
            choice["token_ids"] = ids
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": one, "logprob": -0.5, "top_logprobs": []} for one in said]}
        usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        sent = json.dumps(answer | {"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def theirs():
    """Host and port of a server that gives token ids."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _GivesIds)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def recording(make_daemon, theirs: str):
    """A daemon without a policy that has seen the script, at work."""
    daemon = make_daemon("")
    daemon.config.write_text('[daemon]\nport = 0\ntoken = "none"\nstate_dir = "state"\n')
    with daemon.running():
        daemon.wait_until(lambda: bool(daemon.get("/healthz")))
        daemon.script(SCRIPT, ELSEWHERE=f"http://{theirs}/v1", LIGHTNING_TRUSTED_HOSTS=theirs)
        yield daemon


def commands(daemon, *asked: tuple[str, ...], config: Path | None = None) -> list[tuple[int, str]]:
    """The exit code of each command of ours, and what it prints in one line."""
    lines = [[*one, "--config", str(config or daemon.config)] for one in asked]
    environment = daemon._environment() | {"COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(lines),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


def with_policy(folder: Path, text: str) -> Path:
    config = folder / "with-policy.toml"
    config.write_text(f'[daemon]\nport = 0\ntoken = "none"\nstate_dir = "state"\n{text}')
    return config


def test_it_says_what_it_does_on_one_screen(recording):
    # Before: serve refused a configuration without a [[policy]]
    said = recording.log.read_text()
    assert f"listening on {recording.url} and recording; there is no [[policy]]" in said
    assert str(recording.folder / "state" / "lightning.sqlite") in said
    for what in ("lightning-trainer agents", "lightning-trainer explain", "lightning-trainer build"):
        assert f"{what} " in said or f"{what}:" in said
    assert "add a [[policy]] to" in said


def test_it_has_no_process_but_its_own_and_routes_nothing(recording):
    status = recording.get("/lightning/status")
    assert status["policies"] == {}
    assert recording.get("/lightning/selection")["policies"] == []
    assert status["counts"]["rollouts"] >= 4
    assert not list((recording.folder / "state").glob("logs*"))
    process = psutil.Process(status["pid"])
    assert process.children() == []
    loaded = {part for one in process.memory_maps() for part in Path(one.path).parts}
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("api", ["chat/completions", "completions", "responses", "messages"])
def test_a_call_to_the_gateway_is_told_why_nobody_answers(recording, api):
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "input": "x"}
    request = urllib.request.Request(
        f"{recording.url}/v1/{api}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 404
    error = json.load(refused.value)["error"]
    assert error["message"].startswith("this daemon only records: its configuration has no [[policy]]")
    assert error["type"] == ("not_found_error" if api == "messages" else "invalid_request_error")


def test_every_command_works_on_what_was_recorded(recording):
    shown, samples = recording.folder / "shown.jsonl", recording.folder / "none.jsonl"
    said = commands(
        recording,
        ("status",),
        ("status", "--json"),
        ("agents",),
        ("explain",),
        ("explain", "rain-1"),
        ("build", "--for", "sft", "--out", str(shown)),
        ("build", "--out", str(samples)),
        ("versions",),
    )
    assert [code for code, _ in said] == [0, 0, 0, 0, 0, 0, 1, 2]
    status, as_json, agents, listed, told, shows, builds, versions = (text for _, text in said)
    assert f"recording at {recording.url}" in status
    assert json.loads(as_json)["counts"]["rollouts"] >= 4
    assert "writer - 4 12 12 4 0" in agents  # served by nobody, four calls, all of them exact
    assert "there is no [[policy]] that claims an agent yet" in agents
    assert "no_policy_version" not in agents
    assert "rain-0" in listed
    assert "snow-1" in listed
    assert told.startswith("rollout rain-1 is not trained: no policy: 2 calls recorded, 2 with token ids, and the")
    assert "problems" not in told
    assert "it balances" in told
    assert "8 demonstrations written" in shows
    assert len(shown.read_text().splitlines()) == 8
    assert "nothing to write" in builds
    assert "there is no policy: the configuration has no [[policy]]" in versions


def test_a_program_is_run_over_tasks_and_recorded(recording):
    tasks = recording.folder / "tasks.jsonl"
    tasks.write_text('{"id": "one"}\n{"id": "two"}\n')
    line = [sys.executable, "-m", "lightning_trainer", "rollouts", "--tasks", str(tasks), "--endpoint", recording.url]
    agent = ["--", sys.executable, "-c", "print(1.0)"]
    environment = recording._environment()
    done = subprocess.run([*line, "--evaluate", "look", *agent], env=environment, capture_output=True, text=True)
    assert "mean reward 1.000 over 2 of 2 tasks" in done.stdout, done.stderr
    refused = subprocess.run([*line, "--steps", "1", *agent], env=environment, capture_output=True, text=True)
    assert (refused.returncode, "--steps trains a policy: name it with --policy" in refused.stderr) == (2, True)


def test_a_dataset_is_made_from_attempts_that_a_program_is_run_for(recording, theirs):
    # Before: evaluations were held out of it, and training needed a policy.
    tasks, best = recording.folder / "tasks.jsonl", recording.folder / "best.jsonl"
    tasks.write_text('{"id": "one"}\n{"id": "two"}\n')
    told = (recording.folder / "told").absolute()
    program = f"""
import os, openai
client = openai.OpenAI(base_url="http://{theirs}/v1", api_key="k")
asked = [{{"role": "user", "content": os.environ["LIGHTNING_TASK_ID"]}}]
client.chat.completions.create(model="theirs", messages=asked)
with open({str(told)!r}, "a") as file:
    file.write("x")
print(float(os.path.getsize({str(told)!r}) % 2))
"""
    line = [sys.executable, "-m", "lightning_trainer", "rollouts", "--tasks", str(tasks), "--endpoint", recording.url]
    line += ["--record", "2", "--agent", "picker", "--concurrency", "1", "--run", "dataset", "--"]
    environment = recording._environment() | {"LIGHTNING_TRUSTED_HOSTS": theirs}
    done = subprocess.run([*line, sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "recorded: mean reward 0.500 over 4 of 4 attempts; 0 failed" in done.stdout, done.stderr
    groups = recording.get("/lightning/groups?mode=record")
    assert groups == {"dataset/record/one": 2, "dataset/record/two": 2}
    (_, agents), (code, shown) = commands(
        recording,
        ("agents",),
        ("build", "--agent", "picker", "--for", "sft", "--min-reward", "1", "--out", str(best)),
    )
    assert "picker" in agents
    assert (code, "2 demonstrations written" in shown) == (0, True), shown
    assert {json.loads(row)["group_id"] for row in best.read_text().splitlines()} == groups.keys()


def test_a_policy_that_is_added_finds_them_and_trains_none_by_accident(recording, theirs):
    config = with_policy(recording.folder, POLICY.format(more=""))
    asked = ("agents",), ("explain", "rain-1"), ("build", "--out", str(recording.folder / "none.jsonl"))
    (_, agents), (_, told), (code, built) = commands(recording, *asked, config=config)
    # Before: "exact: everything", and not a word of why nothing of it was trained
    assert f"4 calls with exact token ids of 'theirs' at {theirs}: they did not go through the gateway" in agents
    assert f'[[policy.trusted]] with host = "{theirs}", model = "theirs" and version = 0' in agents
    assert told.startswith("rollout rain-1 is not trained: recorded before: it was recorded before policy tiny was")
    assert "no policy version: 1 call did not go through the gateway" in told
    assert (code, "nothing to write" in built) == (1, True)


def test_what_a_trusted_engine_answered_is_the_policys_where_it_says_so(recording, theirs):
    config = with_policy(recording.folder, POLICY.format(more=TRUSTED.format(host=theirs, model="theirs")))
    out = recording.folder / "samples.jsonl"
    asked = ("agents",), ("explain", "rain-1"), ("build", "--out", str(out))
    (_, agents), (_, told), (code, built) = commands(recording, *asked, config=config)
    assert "no_policy_version" not in agents
    assert told.startswith("rollout rain-1 is not trained yet: waiting: group rain is full")
    assert "tiny@v?" in told  # the ledger: of the policy, and nobody knows which version
    assert (code, "4 samples written" in built) == (0, True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {segment["policy_version"] for row in rows for segment in row["segments"]} == {None}
    assert {row["agent"] for row in rows} == {"writer"}


@pytest.mark.slow
@pytest.mark.loop
@pytest.mark.engine
@pytest.mark.verl
def test_recorded_at_a_real_engine_and_trained_later(make_daemon):
    """The engine elsewhere is another daemon's, with the same weights: engine and trainer must agree on each token."""
    elsewhere = make_daemon(POLICY.format(more="train = false"), training='backend = "inprocess"')
    daemon = make_daemon("", training='backend = "inprocess"')
    without_policy = daemon.config.read_text()
    with elsewhere.running("tiny"), daemon.running():
        daemon.wait_until(lambda: bool(daemon.get("/healthz")))
        host = elsewhere.url.removeprefix("http://")
        where = {"ELSEWHERE": f"http://{host}/v1", "ELSEWHERE_MODEL": "tiny", "LIGHTNING_TRUSTED_HOSTS": host}
        daemon.script(SCRIPT, **where)
    daemon.config.write_text(without_policy + POLICY.format(more=""))
    with daemon.running("tiny"):
        assert any("are not trained: training begins with what" in one for one in daemon.policy("tiny")["problems"])
        assert daemon.policy("tiny")["steps_done"] == 0
        assert daemon.policy("tiny")["waiting_groups"] == {}
    more = TRUSTED.format(host=host, model="tiny") + "\n"
    daemon.config.write_text(without_policy + POLICY.format(more=more))
    with daemon.running():
        daemon.wait_until(lambda: daemon.policy("tiny")["steps_done"] == 1)
        policy = daemon.policy("tiny")
        told = daemon.command("explain", "rain-1")
    (step,) = policy["steps"]
    assert step["tokens_trained"] > 0
    assert step["metrics"]["mismatch/abs_max"] < 1e-2
    assert "staleness/mean" not in step["metrics"]  # nobody knows how old they are
    assert any(name.startswith("rollout_corr/") for name in step["metrics"])  # truncated importance weights
    assert {row["policy_version"] for row in policy["ledger"] if row["outcome"] == "trained"} == {None}
    assert "rollout rain-1 is trained" in told
