"""What the command line says where packages are missing: what works all the same, and which extra gives the rest."""

import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from lightning_trainer import __version__

_EXTRAS = {
    "serve": "daemon,train,engine-cpu",
    "build": "dataset",
    "environments": "environments",
    "scenarios": "environments",
    "quickstart": "daemon,train,engine-cpu,quickstart",
}
_EXTRA = "daemon"
"""Of every other command."""
_COMMANDS = (
    *("agents", "build", "doctor", "drop", "environments", "explain", "feedback", "forget", "health", "judge"),
    *("label", "pause", "plan", "quickstart", "resume", "rollback", "rollouts", "scenarios", "serve", "status"),
    *("store", "token", "ui", "versions"),
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
    sys.exit(f"error: {needs(first, missing)} (without it, `lightning-trainer run` works)")


def needs(command: str, missing: str) -> str:
    """Return what to install for a command that a package is missing for."""
    extras = _EXTRAS.get(command, _EXTRA).split(",")
    giving = _extras_with(missing)
    if giving and not giving & {_EXTRA, *extras}:  # every extra brings that one too
        extras = sorted(giving)[:1]
    return f"{missing} is not installed, and `lightning-trainer {command}` needs it; run: {_pip(','.join(extras))}"


def _extras_with(module: str) -> set[str]:
    """Return the extras that bring a package which is called like the module."""
    try:
        requirements = metadata.requires("lightning-trainer") or []
    except metadata.PackageNotFoundError:
        return set()
    wanted = module.replace("_", "-").lower()
    of_extra = re.compile(r"""([\w.-]+).*extra\s*==\s*['"]([\w-]+)['"]""")
    found = (match for line in requirements if (match := of_extra.match(line)))
    return {match[2] for match in found if match[1].replace("_", "-").lower() == wanted}


def _install(command: str) -> str:
    return _pip(_EXTRAS.get(command, _EXTRA))


def _pip(extras: str) -> str:
    return f'pip install "lightning-trainer[{extras}]"'
