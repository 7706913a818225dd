"""``feedback``, ``forget`` and ``label`` of a daemon elsewhere, and of which one a shell's environment names."""

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import SqliteStore

pytestmark = pytest.mark.process


def said(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return " ".join(done.output.split())


async def recorded(state: Path, attempt_spans) -> None:
    """Attempts a and b of rollouts r-a and r-b, feedback on both, and some that names their task."""
    async with SqliteStore(state / "lightning.sqlite") as store:
        for number, attempt in enumerate("ab"):
            await store.append(attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number))
        for source, rollout in (("mallory", "r-a"), ("mallory", "r-b"), ("ada", "r-a"), ("ada", "t")):
            about = Subject(rollout_id=rollout)
            spans = feedback_span(about, source=source, kind="person", name="feedback", value=1.0)
            await store.append([spans])


@pytest.fixture
def url(serve, tmp_path_factory, attempt_spans) -> str:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "state").mkdir(mode=0o700)
    asyncio.run(recorded(folder / "state", attempt_spans))
    return serve(folder, '[store]\njournal = "journal"\n')


def test_a_daemon_elsewhere_is_asked_and_says_what_it_keeps(here, url, monkeypatch):
    at = ("--endpoint", url)
    shown = said("feedback", *at)
    assert shown.startswith("4 pieces of feedback: 3 quarantined, 1 unmatched; 0 rewards")
    assert "1 piece of feedback found no rollout, because a task is named in its place ('t', say)" in shown
    gone = said("forget", "--source", "mallory", *at)
    assert gone.startswith(
        f"source mallory is forgotten by the daemon at {url}: 2 pieces of feedback (0 edited answers)"
    )
    assert "journal still has it until" in gone
    again = said("forget", "--source", "mallory", *at, status=2)
    assert "there is no feedback of source 'mallory'" in again
    assert url in again
    monkeypatch.setenv("LIGHTNING_ENDPOINT", url)
    assert [one["source"] for one in json.loads(said("feedback", "--json"))["sources"]] == ["ada"]
    told = said("label", "r-b", "--reward", "0.5", "--note", "late")
    assert told == "rollout r-b: reward reward = 0.5 and note stored"
    assert "there is no rollout 'r-z' in the store" in said("label", "r-z", "--reward", "1", status=2)
    # Before: "the daemon did not answer", since JSON has no such number
    assert "--reward is nan: a reward is a number between" in said("label", "r-b", "--reward", "nan", status=2)
    assert said("forget", "--task", "t").startswith(f"task t is forgotten by the daemon at {url}: 2 attempts")
    monkeypatch.setenv("LIGHTNING_TOKEN", "of-another-daemon-altogether")
    for command in (("feedback",), ("forget", "--source", "ada"), ("label", "r-b", "--reward", "1")):
        assert "set LIGHTNING_TOKEN to what `lightning-trainer token` prints where it runs" in said(*command, status=2)
    assert not (here / ".lightning").exists()


@pytest.fixture
def port() -> int:
    """Where nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def test_a_shell_for_one_daemon_changes_no_store_that_is_not_named(here, port, monkeypatch, attempt_spans):
    (here / "state").mkdir(mode=0o700)
    asyncio.run(recorded(here / "state", attempt_spans))
    (here / "lightning.toml").write_text(f'[daemon]\nport = {port}\nstate_dir = "state"\n')
    forget, label = ("forget", "--source", "mallory"), ("label", "r-a", "--reward", "1")
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    for command in (("feedback",), forget, label):
        assert "127.0.0.1:9 did not answer" in said(*command, status=2)
    assert said("feedback", "--config", "lightning.toml").startswith("4 pieces")
    monkeypatch.setenv("LIGHTNING_ENDPOINT", f"http://localhost:{port}")
    assert said(*label) == "rollout r-a: reward reward = 1 stored"
    assert said(*forget).startswith("source mallory is forgotten: 2 pieces")
    assert f"127.0.0.1:{port} did not answer" in said(*forget, "--endpoint", f"http://127.0.0.1:{port}", status=2)
