"""``judge`` of a daemon elsewhere, which has the store, the judges and what they ask; and of no store by mistake."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import httpx
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import as_json
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.store import SqliteStore

pytestmark = pytest.mark.process
POLITE = """
import json, sys
told = json.load(sys.stdin)
open("asked", "a").write("x")
if "Bye" not in told["answer"]:
    sys.exit("it never ends")
print(json.dumps({"score": told["answer"].count("e") / 10, "reason": f"read {len(told['calls'])} calls"}))
"""
SLOW = """
import os, time
open("slow.pid.new", "w").write(str(os.getpid()))
os.rename("slow.pid.new", "slow.pid")
time.sleep(600)
"""
JUDGES = f"""
[[judge]]
name = "polite"
kind = "program"
command = [{sys.executable!r}, "polite.py"]

[[judge]]
name = "slow"
kind = "program"
command = [{sys.executable!r}, "slow.py"]
timeout_s = 900
"""


async def recorded(state: Path, attempt_spans) -> None:
    """Attempts a and b of task t, and c of task u."""
    async with SqliteStore(state / "lightning.sqlite") as store:
        for number, (attempt, task, text) in enumerate((("a", "t", "Bye."), ("b", "t", "Hello."), ("c", "u", "Bye"))):
            root, call = attempt_spans(attempt, [1], 10**18 + 50 * number, task=task)
            said = [{"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": "stop"}]
            asked = [{"role": "user", "parts": [{"type": "text", "content": "Hello."}]}]
            call.attributes.update({semconv.INPUT_MESSAGES: as_json(asked), semconv.OUTPUT_MESSAGES: as_json(said)})
            await store.append([root, call])


@pytest.fixture(scope="module")
def folder(tmp_path_factory, attempt_spans) -> Path:
    """The daemon's, which is not the command's."""
    made = tmp_path_factory.mktemp("elsewhere")
    (made / "state").mkdir(mode=0o700)
    (made / "polite.py").write_text(POLITE)
    (made / "slow.py").write_text(SLOW)
    asyncio.run(recorded(made / "state", attempt_spans))
    return made


@pytest.fixture(scope="module")
def url(serve, folder) -> str:
    return serve(folder, JUDGES)


def run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["judge", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


def test_the_daemon_elsewhere_judges(here, url, folder, monkeypatch):
    by = ("--judge", "polite", "--endpoint", url)
    assert "would be asked 2 questions about 2 attempts" in run("t", "--dry-run", *by)
    assert '"attempt_id": "a"' in json.loads(run("t", "--dry-run", "--json", *by))["first"]
    assert not (folder / "asked").exists()
    said = run("t", *by, status=1)
    assert "a        t     0.1      read 1 calls" in said
    assert "it never ends" in said
    assert "judge polite gave 1 of 2 attempts a reward" in said
    assert "1 had it already" in run("r-a", *by)
    assert (folder / "asked").read_text() == "xx"
    monkeypatch.setenv("LIGHTNING_ENDPOINT", url)
    told = json.loads(run("--since", "2000-01-01", "--judge", "polite", "--json", status=1))
    assert told["judged"][1] == {"attempt_id": "c", "value": 0.1, "reason": "read 1 calls", "remembered": False}
    assert told["spent"] == {"calls": 0, "input_tokens": 0, "output_tokens": 0}
    assert json.loads(run("--judge", "polite", "--report", "--json"))["judged"] == 2
    shown = run("--judge", "polite", "--report")
    assert "2 attempts judged, 0 of them with a right reward (checked_by names none: nothing to compare with)" in shown
    assert not (here / ".lightning").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("r-a", "--judge", "rude"), "there is no [[judge]] 'rude' in the configuration: it has polite"),
        (("r-z", "--judge", "polite"), "there is no rollout, attempt, task or group 'r-z': the nearest are r-"),
        (("--judge", "polite"), "name rollouts, tasks or groups to judge, or say --since 2h"),
        (("--judge", "polite", "--since", "soon"), "--since 'soon' is not a time: write 30m, 2h, 7d"),
        (("--judge", "polite", "--since", "9" * 60 + "d", "--dry-run", "r-z"), "there is no rollout"),
        (("--judge", "polite", "--since", "9999-12-31"), "there is no attempt since 9999-12-31 that has ended"),
    ],
)
def test_a_mistake_is_one_sentence(here, url, arguments, sentence):
    said = run(*arguments, "--endpoint", url, status=2)
    assert sentence in said
    assert f"({url})" in said


def test_a_shell_for_one_daemon_judges_no_store_that_is_not_named(here, monkeypatch, attempt_spans):
    (here / "state").mkdir(mode=0o700)
    (here / "polite.py").write_text(POLITE)
    (here / "lightning.toml").write_text('[daemon]\nport = 0\nstate_dir = "state"\n' + JUDGES)
    asyncio.run(recorded(here / "state", attempt_spans))
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1:9 did not answer" in run("r-a", "--judge", "polite", status=2)
    assert not (here / "asked").exists()
    assert "gave 1 of 1 attempts" in run("r-a", "--judge", "polite", "--config", "lightning.toml")


def test_who_hangs_up_stops_the_judge(here, url, folder):
    headers = {"authorization": f"Bearer {os.environ['LIGHTNING_TOKEN']}"}
    body = {"judge": "slow", "names": ["r-a"]}
    with httpx.stream("POST", f"{url}/lightning/judge", json=body, headers=headers, timeout=60) as answer:
        lines = answer.iter_lines()
        assert "working" in json.loads(next(lines))
        assert json.loads(next(lines)) == {"working": {"groups": 1, "done": 0}}
        pid = int(_when_there(folder / "slow.pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _when_there(file: Path) -> Path:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return file
