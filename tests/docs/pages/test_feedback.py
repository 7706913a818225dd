"""docs/feedback.md: its program gives feedback to a daemon, its commands run, its table has every setting."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.tables import feedback as table

PAGE = (Path(__file__).parents[3] / "docs" / "feedback.md").read_text(encoding="utf-8")
SETTINGS = '[daemon]\nport = 0\ntoken = "a-token-of-the-tests"\n'


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def url(tmp_path, monkeypatch, rollout_spans, calls_outside):
    """A daemon that records, and the rollout and the calls outside of one that the page speaks of."""
    (tmp_path / "lightning.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)

    async def record():
        async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
            await store.append(rollout_spans("ticket-4711", "chatcmpl-1"))
            await store.append(rollout_spans("ticket-4712", "chatcmpl-3", trace="7" * 32))
            await store.append(calls_outside("4bf92f3577b34da6a3ce929d0e0e4736", "chatcmpl-2"))

    asyncio.run(record())
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    daemon = Daemon(load_config(tmp_path / "lightning.toml"))

    async def serve():
        running = asyncio.create_task(daemon.run(stop))
        while not (tmp_path / ".lightning" / "daemon.json").exists() and not running.done():
            await asyncio.sleep(0.02)
        ready.set()
        await running

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield daemon.url
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)


@pytest.fixture
def rollout_spans():
    from lightning_instrumentation import semconv

    from lightning_trainer.types import Span

    def make(rollout: str, response: str, trace: str = "1" * 32) -> list[Span]:
        own = {semconv.ROLLOUT_ID: rollout, semconv.ATTEMPT_ID: f"{rollout}-1", semconv.TASK_ID: "where-is-my-parcel"}
        call = {**own, semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: response}
        return [
            Span(trace, "2" * 16, None, "rollout", 1, 9, {**own, semconv.ROLLOUT_ROOT: True}),
            Span(trace, "3" * 16, "2" * 16, "chat", 2, 3, call),
        ]

    return make


@pytest.fixture
def calls_outside():
    from lightning_instrumentation import semconv

    from lightning_trainer.types import Span

    def make(trace: str, response: str) -> list[Span]:
        return [
            Span(trace, "4" * 16, None, "chat", 1, 2, {semconv.RESPONSE_ID: "another"}),
            Span("5" * 32, "6" * 16, None, "chat", 1, 2, {semconv.RESPONSE_ID: response}),
        ]

    return make


def run(command: str) -> str:
    done = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.process
def test_the_program_and_the_commands_work_as_they_stand(url, tmp_path):
    (program,) = blocks("python")
    posted, shown, forgotten = blocks("bash")
    here = {
        **os.environ,
        "LIGHTNING_ENDPOINT": url,
        "LIGHTNING_TOKEN": "a-token-of-the-tests",
        "LIGHTNING_SPOOL_DIR": str(tmp_path / "spool"),
    }
    finish = f"{program}\nassert lt.flush(30)"
    subprocess.run([sys.executable, "-c", finish], env=here, check=True, timeout=120)
    asked = posted.replace("http://127.0.0.1:8321", url)
    done = subprocess.run(asked, shell=True, env=here, capture_output=True, text=True, timeout=60)
    assert '"accepted":true,"new":true' in done.stdout, done
    with read_only(tmp_path / ".lightning" / "lightning.sqlite") as connection:
        found = [(one.source, one.name, one.value, one.edited, one.attempt_id) for one in table.select(connection)]
    attempt = "ticket-4711-1"
    assert sorted(found) == [
        ("crm", "resolved", 0.0, False, attempt),
        ("editor-2", "feedback", None, True, attempt),
        ("user-17", "feedback", 0.0, False, attempt),
        ("user-17", "feedback", 1.0, False, attempt),
        ("user-18", "feedback", 0.75, False, attempt),
    ]
    assert "5 pieces of feedback: 5 quarantined" in run(shown)
    by_task = f"{program.splitlines()[0]}\nlt.feedback(source='u', thumb='up', rollout_id='where-is-my-parcel')"
    subprocess.run([sys.executable, "-c", f"{by_task}\nassert lt.flush(30)"], env=here, check=True, timeout=120)
    assert "1 piece of feedback found no rollout, because a task is named in its place" in run(shown)
    source, rollout, task, trace, response = forgotten.splitlines()
    aside = tmp_path / ".lightning" / "lightning.sqlite.before-restore-20260101-000000"
    aside.touch()
    assert "source user-17 is forgotten: 2 pieces of feedback" in (said := run(source))
    assert f"{aside.name} was set aside and may still have it" in said
    assert "rollout ticket-4711 is forgotten: 1 attempt, 3 pieces of feedback (1 edited answer)" in run(rollout)
    assert "task where-is-my-parcel is forgotten: 1 attempt, 1 piece of feedback" in run(task)
    assert "trace 4bf92f3577b34da6a3ce929d0e0e4736 is forgotten: 0 pieces of feedback" in run(trace)
    assert "response chatcmpl-2 is forgotten: 0 pieces of feedback" in (said := run(response))
    assert "1 span\n" in said


def test_the_configuration_is_accepted():
    (text,) = blocks("toml")
    config = Config.model_validate(tomllib.loads(text))
    (policy,) = config.policy
    assert set(policy.reward_weights).isdisjoint(config.feedback.verified), "only a part of the attempts is verified"
    assert policy.reward_wait_s > config.feedback.quarantine


def test_the_table_has_every_setting_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, flags=re.MULTILINE))
    assert rows.keys() == FeedbackConfig.model_fields.keys()
    stated = FeedbackConfig.model_validate(
        tomllib.loads("\n".join(f"{name} = {value}" for name, value in rows.items()))
    )
    assert stated == FeedbackConfig()
