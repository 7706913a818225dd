"""What users do wrong before a daemon is up: one clear sentence, and an exit status that says whether to try again."""

import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

GOOD = '[daemon]\nport = 0\n[[policy]]\nname = "p"\nagents = ["a"]\nmodel = "random:tiny"\n'


@pytest.fixture
def serve(lightning: Any) -> Callable[..., str]:
    """Run it until it refuses; return what it said."""

    def serve(config: Path, status: int = 78) -> str:
        done = lightning.run("serve", "--config", str(config), cwd=config.parent)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return next(line for line in done.stderr.splitlines() if line.startswith("error: "))

    return serve


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD + "groupsize = 4\n", "unknown key 'policy.p.groupsize'; did you mean 'group_size'?"),
        (GOOD + "group_size = 1\n", "policy.p.group_size = 1: it has to be greater than or equal to 2"),
        (GOOD.replace("port = 0", 'host = "0.0.0.0"\ntoken = "none"'), "reachable from other machines"),
        (GOOD.replace("random:tiny", "no/such-folder/at-all"), "no/such-folder/at-all"),
        (GOOD.replace("random:tiny", "embedded:gpt-9"), "embedded:gpt-9"),
        ("[[policy]\n", "is not valid TOML"),
    ],
    ids=["unknown key", "out of range", "open to the world", "unknown model", "unknown embedded model", "not TOML"],
)
def test_a_wrong_configuration(serve, text: str, sentence: str, tmp_path: Path):
    config = tmp_path / "lightning.toml"
    config.write_text(text)
    assert sentence in serve(config)


def test_a_file_that_is_not_there(serve, tmp_path: Path):
    assert "cannot read the configuration" in serve(tmp_path / "absent.toml")


def test_a_store_that_a_newer_version_wrote(serve, tmp_path: Path):
    """Another start would not make it older: it is not for a supervisor to try again."""
    state = tmp_path / "state"
    state.mkdir()
    with sqlite3.connect(state / "lightning.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    config = tmp_path / "lightning.toml"
    config.write_text(f'[daemon]\nport = 0\nstate_dir = "{state}"\n')
    assert "has schema 99" in serve(config)


def test_a_port_that_is_taken(serve, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "lightning.toml"
        config.write_text(GOOD.replace("port = 0", f"port = {port}"))
        sentence = serve(config, status=75)
    assert str(port) in sentence
    assert "in use" in sentence or "taken" in sentence
