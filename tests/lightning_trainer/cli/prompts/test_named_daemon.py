"""``LIGHTNING_ENDPOINT`` of a shell, beside what a command itself names and the store of a stopped daemon."""

import asyncio
import json
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.cli.daemon.named_daemon import option_of
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import root_of


async def registered(folder: Path) -> None:
    async with SqliteStore(folder / "lightning.sqlite") as store:
        await store.write(lambda connection: prompts.register(connection, "clerk", root_of("x"), "x", 1))


@pytest.fixture
def port() -> int:
    """Where nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.fixture
def here(tmp_path, monkeypatch, port) -> Path:
    """A stopped daemon's folder; its port is ``port``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path / "access"))
    monkeypatch.setenv("LIGHTNING_TOKEN", "")
    (tmp_path / "state").mkdir(mode=0o700)
    asyncio.run(registered(tmp_path / "state"))
    (tmp_path / "lightning.toml").write_text(f'[daemon]\nport = {port}\nstate_dir = "state"\n')
    (tmp_path / "text.txt").write_text("y")
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    return tmp_path


def said(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, (done.output, done.exception)
    # A stub server's thread of an earlier test may write to standard error meanwhile.
    return " ".join((done.output if status else done.stdout).split())


def all_four(*option: str) -> None:
    added = said("prompts", "add", "clerk", "text.txt", *option)
    assert f"serve it with: lightning-trainer prompts use clerk@v1{''.join(f' {one}' for one in option)}" in added
    said("prompts", "use", "clerk@v1", *option)
    assert [one["live"] for one in json.loads(said("prompts", "list", "--json", *option))] == [[1]]
    assert [one["text"] for one in json.loads(said("prompts", "show", "clerk", "--json", *option))] == ["x", "y"]


def test_a_configuration_that_a_command_names_counts_for_more_than_the_environment(here, monkeypatch):
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    (here / "lightning.toml").rename(here / "staging.toml")
    all_four("--config", "staging.toml")
    assert "127.0.0.1:9 did not answer" in said("prompts", "list", status=2)


def test_the_store_of_the_environments_own_stopped_daemon_is_used(here, monkeypatch, port):
    monkeypatch.setenv("LIGHTNING_ENDPOINT", f"http://localhost:{port}/v1")
    all_four()
    own = f"http://127.0.0.1:{port}"
    assert f"{own} did not answer" in said("prompts", "list", "--endpoint", own, status=2)
    (here / "lightning.toml").unlink()
    assert f"localhost:{port} did not answer" in said("prompts", "list", status=2)


def test_what_answers_at_the_address_of_a_stopped_daemon_is_asked(here, monkeypatch, port):
    monkeypatch.setenv("LIGHTNING_ENDPOINT", f"http://127.0.0.1:{port}")
    with HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            assert f"127.0.0.1:{port}" in said("prompts", "list", status=2)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "command", [("prompts", "optimize", "clerk", "--attempts", "9"), ("rollouts", "--record", "1")]
)
def test_a_program_is_run_against_the_daemon_of_the_configuration_that_is_named(here, monkeypatch, command):
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    (here / "lightning.toml").write_text('[daemon]\nport = 0\nstate_dir = "state"\n')
    options = ("--tasks", "tasks.jsonl", "--config", "lightning.toml", "--", "true")
    assert "port = 0 does not say where one will be" in said(*command, *options, status=2)


def test_a_command_that_is_told_of_names_the_daemon_where_the_environment_does_not(monkeypatch):
    monkeypatch.delenv("LIGHTNING_ENDPOINT", raising=False)
    assert option_of(None, None) == ""
    assert option_of("http://a:1", None) == " --endpoint http://a:1"
    assert option_of("http://a:1", Path("a b.toml")) == " --config 'a b.toml' --endpoint http://a:1"
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://a:1")
    assert option_of("http://a:1", None) == ""
    assert option_of(None, Path("a.toml")) == " --config a.toml"
    assert option_of("http://a:1", Path("a.toml")) == " --config a.toml --endpoint http://a:1"
