"""What the command line says if packages are missing: what still works, and which extra provides the rest."""

import re
import sys
from collections.abc import Sequence
from importlib import metadata
from textwrap import fill
from typing import NoReturn

from lightning_trainer import __version__

_SERVE = "serve"
_TO_TRAIN = "daemon,train,engine-cpu"
_EXTRAS = {
    _SERVE: _TO_TRAIN,
    "build": "dataset",
    "environments": "environments",
    "scenarios": "environments",
    "quickstart": f"{_TO_TRAIN},quickstart",
}
_EXTRA = "daemon"
"""The extra of every other command."""
_OF_UNIX = ("fcntl", "grp", "pwd", "resource", "termios")
"""Modules of Python that Windows lacks."""
_EXIT_USER_ERROR = 2
_EXIT_CONFIG = 78
"""Status of ``serve``, for whatever restarts it: another start would end in the same way (``cli/daemon/serve.py``)."""
_COMMANDS = (
    *(
        "agents",
        "build",
        "doctor",
        "drop",
        "environments",
        "explain",
        "export",
        "feedback",
        "forget",
        "health",
        "judge",
    ),
    *(
        "label",
        "pause",
        "plan",
        "promote",
        "prompts",
        "quickstart",
        "resume",
        "rollback",
        "rollouts",
        "scenarios",
        "serve",
        "status",
    ),
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
    """Answer a command line that the installed packages cannot run; ``missing`` is a module that is not installed."""
    first = arguments[0] if arguments else "--help"
    if first == "--version":
        print(__version__)
        sys.exit(0)
    if first in ("--help", "-h", "help"):
        print(_HELP.format(rest=_by_extras()), end="")
        sys.exit(0)
    if first not in _COMMANDS:
        said = f"there is no command {first!r}; see: lightning-trainer --help"
    else:
        said = f"{needs(first, missing)} (without it, `lightning-trainer run` works)"
    print(f"error: {said}", file=sys.stderr)
    sys.exit(_EXIT_CONFIG if first == _SERVE else _EXIT_USER_ERROR)


def _by_extras() -> str:
    """Return what to install, and below each the commands that need it."""
    commands: dict[str, list[str]] = {}
    for name in _COMMANDS:
        commands.setdefault(_pip(_EXTRAS.get(name, _EXTRA)), []).append(name)
    commands[_pip(_EXTRA)].append(f"{_SERVE} without a policy")
    commands = dict(sorted(commands.items(), key=lambda one: -len(one[1])))
    wrapped = (
        fill(", ".join(names), 76, initial_indent=" " * 6, subsequent_indent=" " * 6) for names in commands.values()
    )
    return "".join(f"  {pip}\n{names}\n" for pip, names in zip(commands, wrapped, strict=True))


def needs_unix(command: str) -> str:
    """Return what to say about a command that does not run on Windows."""
    return f"`lightning-trainer {command}` needs Linux or macOS"


def needs(command: str, missing: str) -> str:
    """Return a sentence: what to install for a command that lacks a module, or that it needs Linux or macOS."""
    if missing in _OF_UNIX:
        return needs_unix(command)
    extras = _EXTRAS.get(command, _EXTRA).split(",")
    giving = _extras_with(missing)
    if giving and not giving & {_EXTRA, *extras}:  # every extra in `_EXTRAS` brings `_EXTRA` too
        extras = sorted(giving)[:1]
    run = _pip(",".join(extras))
    if command == _SERVE and _EXTRA in giving:
        run = f"{_pip(_EXTRA)}, with which it records; to train as well: {run}"
    return f"{missing} is not installed, and `lightning-trainer {command}` needs it; run: {run}"


def _extras_with(module: str) -> set[str]:
    """Return the extras that bring a package with the module's name."""
    try:
        requirements = metadata.requires("lightning-trainer") or []
    except metadata.PackageNotFoundError:
        return set()
    wanted = module.replace("_", "-").lower()
    of_extra = re.compile(r"""([\w.-]+).*extra\s*==\s*['"]([\w-]+)['"]""")
    found = (match for line in requirements if (match := of_extra.match(line)))
    return {match[2] for match in found if match[1].replace("_", "-").lower() == wanted}


def _pip(extras: str) -> str:
    return f'pip install "lightning-trainer[{extras}]"'
