"""What the command line says where only the light client is installed: `run` works, and which extra gives the rest."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from lightning_trainer import __version__

_EXTRAS = {
    "serve": "daemon,train,engine-cpu",
    "build": "dataset",
    "quickstart": "daemon,train,engine-cpu,quickstart",
}
_EXTRA = "daemon"
"""Of every other command."""
_COMMANDS = (
    *("agents", "build", "doctor", "explain", "judge", "quickstart"),
    *("rollback", "rollouts", "serve", "status", "versions"),
)
_HELP = """\
usage: lightning-trainer run [OPTIONS] -- COMMAND [ARGUMENT ...]

Watch agents through OpenTelemetry, train the ones you choose, serve the new weights while they run.

This is the light client. What works here:

  run          run a program with every model call captured; see: lightning-trainer run --help
  --version    print it

What needs more packages:

{rest}

On a machine with GPUs install vllm instead of the extra engine-cpu, in an interpreter of its own ([engine] python).
"""


def main(arguments: Sequence[str], *, missing: str) -> NoReturn:
    """Answer a command line that the installed packages cannot; ``missing`` is one that is not there."""
    first = arguments[0] if arguments else "--help"
    if first == "--version":
        print(__version__)
        sys.exit(0)
    if first in ("--help", "-h", "help"):
        print(_HELP.format(rest="\n".join(f"  {name:<12} {_install(name)}" for name in _COMMANDS)), end="")
        sys.exit(0)
    if first not in _COMMANDS:
        sys.exit(f"error: there is no command {first!r}; see: lightning-trainer --help")
    sys.exit(
        f"error: {missing} is not installed, and `lightning-trainer {first}` needs it; run: {_install(first)} (without "
        "it, `lightning-trainer run` works)"
    )


def _install(command: str) -> str:
    return f'pip install "lightning-trainer[{_EXTRAS.get(command, _EXTRA)}]"'
