"""``ui`` of a stopped run: what it says can be done as it is said."""

import asyncio
import os
import re
import shlex
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.store import SqliteStore

pytestmark = pytest.mark.process


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The state folder of a stopped run, in a folder with a space in its name, with a token of its own."""
    folder = tmp_path / "my runs" / "first"
    folder.mkdir(parents=True)

    async def make() -> None:
        async with SqliteStore(folder / "lightning.sqlite"):
            pass

    asyncio.run(make())
    (folder / "token").write_text("a-token-of-this-run-alone-0123456789\n")
    (folder / "token").chmod(0o600)
    return folder


@pytest.fixture
def said_by(lightning: Any) -> Callable[..., list[str]]:
    """The two lines that it says before it is ended."""

    def said_by(*arguments: str, cwd: Path) -> list[str]:
        reading, writing = os.pipe()
        with open(reading) as lines:
            with open(writing, "w") as stdout:
                ui = lightning.start("ui", "--port", "0", *arguments, cwd=cwd, stdout=stdout)
            try:
                return [lines.readline().strip() for _ in range(2)]
            finally:
                ui.send_signal(signal.SIGINT)
                ui.wait(30)

    return said_by


def test_the_token_of_a_named_folder_is_where_it_is_said_to_be(said_by, stopped: Path, tmp_path: Path):
    _, how = said_by("--state-dir", str(stopped), cwd=tmp_path)
    assert how == f"the token to log in is in {stopped / 'token'}"


def test_the_token_of_a_named_configuration_is_printed_by_what_it_names(
    lightning, said_by, stopped: Path, tmp_path: Path
):
    config = tmp_path / "my runs" / "lightning.toml"
    config.write_text('[daemon]\nstate_dir = "first"\n')
    _, how = said_by("--config", str(config), cwd=tmp_path)
    command = re.findall(r"`lightning-trainer (token .*)` prints the token to log in", how)
    printed = lightning.run(*shlex.split(command[0]), cwd=tmp_path)
    assert (printed.returncode, printed.stdout) == (0, (stopped / "token").read_text())


def test_a_taken_port_is_set_where_it_was_set(lightning, stopped: Path, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = lightning.run("ui", "--state-dir", str(stopped), "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert "stop it or set another --port (0 picks a free one)" in done.stderr


def test_a_named_folder_is_shown_where_the_configuration_has_a_database(said_by, stopped: Path, tmp_path: Path):
    """Nobody listens at its address: what is shown is the store of the folder, as of a run before the database."""
    config = tmp_path / "lightning.toml"
    config.write_text('[store]\nurl = "postgresql://nobody@127.0.0.1:1/runs"\nshared_dir = "elsewhere"\n')
    shown, _ = said_by("--config", str(config), "--state-dir", str(stopped), cwd=tmp_path)
    assert shown.startswith(f"{stopped}, read only: http://127.0.0.1:")
