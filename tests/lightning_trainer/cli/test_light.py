"""The command line where only the light client is installed: what works is named, and which extra gives the rest."""

import subprocess
import sys

import pytest

from lightning_trainer import __version__
from lightning_trainer.cli import light

# What the extra `daemon` brings is not there.
_LIGHT = """
import sys
for name in ("typer", "rich", "pydantic", "fastapi", "httpx"):
    sys.modules[name] = None
sys.argv = ["lightning-trainer", *sys.argv[1:]]
from lightning_trainer.cli import main
main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _LIGHT, *arguments], capture_output=True, text=True)


def test_it_says_its_version() -> None:
    # Before: "error: typer is not installed"
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_its_help_names_run_and_the_extra_of_every_other_command(arguments) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run          run a program with every model call captured" in done.stdout
    assert 'serve        pip install "lightning-trainer[daemon,train,engine-cpu]"' in done.stdout
    assert 'agents       pip install "lightning-trainer[daemon]"' in done.stdout


def test_another_command_says_what_to_install_and_what_works_without() -> None:
    done = run("build", "--out", "x.parquet")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: typer is not installed, and `lightning-trainer build` needs it; run: "
        'pip install "lightning-trainer[dataset]" (without it, `lightning-trainer run` works)\n'
    )


def test_run_works_and_a_word_that_is_no_command_is_called_one() -> None:
    assert run("run", "--", sys.executable, "-c", "print(5)").stdout == "5\n"
    assert "there is no command 'serv'; see: lightning-trainer --help" in run("serv").stderr


def test_the_help_of_the_light_client_names_every_command_there_is() -> None:
    from lightning_trainer.cli.app import app

    known = {one.name or (one.callback and one.callback.__name__) for one in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    assert {*light._COMMANDS, "run"} == known
