"""The named environments, the packages that each needs in its interpreter, and the syntax of a name.

``frozenlake:4x4?slippery=true`` is an environment, its variant, and its options. A package may name environments of its
own.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from lightning_trainer.environments.adapters import code_actions, mcp_tools
from lightning_trainer.environments.errors import UnknownEnvironmentError
from lightning_trainer.environments.loading import digest_of
from lightning_trainer.environments.worker.process import Launch
from lightning_trainer.errors import ConfigError

DEFAULT_FOLDER = Path(".venv-environments")
_GROUP = "lightning_trainer.environments"
"""The entry points by which an installed package names its environments."""


@dataclass(frozen=True)
class Known:
    """One of our adapters."""

    adapter: str
    """``module:Class``, where the module is in ``adapters``."""
    about: str
    interpreter: str | None = None
    """The folder of its interpreter; None: it runs in ours."""
    requirements: tuple[str, ...] = ()
    reset_timeout_s: Callable[[Mapping[str, Any]], float] = lambda options: 0.0
    """From the options, the least time limit of a reset, for an environment whose reset takes longer by design."""
    step_timeout_s: Callable[[Mapping[str, Any]], float] = lambda options: 0.0
    """The same for a step."""
    from_file: bool = False
    """Whether the environment reads the fields of a task from a file; the others make their tasks from seeds."""


_GYMNASIUM = ("gymnasium[toy-text]>=1.0,<2",)

KNOWN: Mapping[str, Known] = {
    "code": Known(
        "code_actions:CodeActions",
        "code as action: Python in a sandbox, hidden tests (Linux)",
        step_timeout_s=code_actions.step_timeout_s,
        from_file=True,
    ),
    "frozenlake": Known(
        "frozenlake:FrozenLake", "a frozen lake in text: frozenlake:4x4, up to 8x8", "gymnasium", _GYMNASIUM
    ),
    "gymnasium": Known(
        "gymnasium_text:GymnasiumText",
        "environments with discrete actions: gymnasium:Taxi-v4",
        "gymnasium",
        _GYMNASIUM,
    ),
    "mcp": Known(
        "mcp_tools:McpTools",
        "the tools of an MCP server, with tasks from a file (scenarios mcp)",
        reset_timeout_s=mcp_tools.longest_s,
        step_timeout_s=mcp_tools.longest_s,
        from_file=True,
    ),
    "miniwob": Known(
        "miniwob_pages:MiniWoB",
        "small web pages in a headless Chromium: miniwob:click-button",
        "miniwob",
        ("miniwob>=1.1,<1.2",),
        reset_timeout_s=lambda options: 120.0,
    ),
    "openenv": Known("openenv:OpenEnv", "a running OpenEnv server: openenv:http://127.0.0.1:8000", from_file=True),
    "reasoning-gym": Known(
        "reasoning_gym_questions:ReasoningGym",
        "generated questions: reasoning-gym:basic_arithmetic",
        "reasoning-gym",
        ("reasoning-gym>=0.1.20,<0.2",),
    ),
    "skyrl-gym": Known(
        "skyrl_gym_envs:SkyRLGym",
        "text environments: skyrl-gym:gsm8k",
        "skyrl-gym",
        ("skyrl-gym>=0.4,<0.5",),
        from_file=True,
    ),
    "sokoban": Known("sokoban:Sokoban", "push boxes, in text: sokoban:6x6?boxes=1", "sokoban", ("gym-sokoban==0.0.6",)),
    "textarena": Known(
        "textarena_games:TextArena",
        "games of one player: textarena:GuessTheNumber-v0",
        "textarena",
        ("textarena>=0.7,<0.8",),
    ),
    "textworld": Known(
        "textworld_games:TextWorld",
        "text adventures: textworld:coin_collector?level=3",
        "textworld",
        ("textworld>=1.7,<1.8",),
        reset_timeout_s=lambda options: 240.0,
    ),
    "verifiers": Known(
        "verifiers_envs:Verifiers",
        "environments of verifiers: verifiers:NAME, verifiers:/path/to/file.py",
        "verifiers",
        ("verifiers>=0.2,<0.3",),
    ),
    "web": Known(
        "web_pages:WebPages",
        "web pages of your own in a headless Chromium: web:/path/to/file.py",
        "web",
        ("selenium>=4.30,<5",),
        from_file=True,
    ),
}


def packaged() -> dict[str, EntryPoint]:
    """Return the environments of installed packages by name: the entry points of ``_GROUP``."""
    return {point.name: point for point in entry_points(group=_GROUP)}


def check_system() -> None:
    """Refuse Windows, where no environment can have a process of its own.

    Raises:
        ConfigError: this is Windows.
    """
    if sys.platform == "win32":
        raise ConfigError(
            "environments with processes of their own need Linux or macOS: use WSL, or a class or function of your own "
            "in the program's process, as in Runner.from_environment(MyEnvironment, policy=...)"
        )


def launch_of(spec: EnvironmentSpec, folder: Path = DEFAULT_FOLDER, python: str | None = None) -> Launch:
    """Return how to start a process of the environment.

    Args:
        folder: contains the interpreters that ``lightning-trainer environments install`` created.
        python: the user's own interpreter that has the packages.

    Raises:
        ConfigError: this is Windows.
        UnknownEnvironmentError: there is no environment of that name, or its packages are not installed.
    """
    check_system()
    if spec.attribute is not None:
        return _of_users(spec, spec.name, spec.attribute, python)
    known = KNOWN.get(spec.name)
    if known is None:
        others = packaged()
        if point := others.get(spec.name):
            return _of_users(spec, point.module, point.attr, python)
        raise UnknownEnvironmentError(
            f"there is no environment {spec.name!r}; there are {', '.join(sorted({*KNOWN, *others}))}; one of your own "
            "is path/to/file.py:Class or package.module:Class, and a reward function may be in the place of the class"
        )
    interpreter = sys.executable
    if python is not None:
        interpreter = python
    elif known.interpreter is not None:
        interpreter = str(interpreter_of(known.interpreter, folder))
        if not Path(interpreter).exists():
            raise UnknownEnvironmentError(
                f"the environment {spec.name} needs {' '.join(known.requirements)} in an interpreter of its own, which "
                f"is not at {folder / known.interpreter}; run: lightning-trainer environments install {spec.name}"
                + ("" if folder.absolute() == DEFAULT_FOLDER.absolute() else f" --folder {shlex.quote(str(folder))}")
                + ", or say where it is with --folder, or in [environments] folder"
            )
    module, _, attribute = known.adapter.partition(":")
    return Launch(
        label=spec.text,
        python=interpreter,
        module=f"lightning_trainer.environments.adapters.{module}",
        attribute=attribute,
        isolated=known.interpreter is not None,
        variant=_absolute(spec.variant),
        options=spec.options,
        reset_timeout_s=known.reset_timeout_s(spec.options),
        step_timeout_s=known.step_timeout_s(spec.options),
        digest=digest_of(Path(__file__).with_name("adapters") / f"{module}.py"),
    )


def check_file_task(environment: str, task: str) -> None:
    """Refuse a task from a file if the environment does not read such tasks: every line would be the same task.

    Raises:
        ConfigError: the environment makes its tasks from seeds.
    """
    spec = EnvironmentSpec.parse(environment)
    known = KNOWN.get(spec.name) if spec.attribute is None else None
    if known is not None and not known.from_file:
        raise ConfigError(
            f"the task {task!r} of a file means nothing to {environment}, whose tasks come from seeds; leave out "
            "--tasks (an evaluation takes --count tasks), or play an environment that reads tasks from a file: "
            + ", ".join(name for name, one in sorted(KNOWN.items()) if one.from_file)
        )


def _absolute(variant: str | None) -> str | None:
    """Make the path of a file absolute: the process starts in a folder of its own."""
    return variant if variant is None or not Path(variant).is_file() else str(Path(variant).absolute())


def interpreter_of(name: str, folder: Path) -> Path:
    """Return the path of an environment's interpreter."""
    return folder.absolute() / name / "bin" / "python"


def _of_users(spec: EnvironmentSpec, module: str, attribute: str, python: str | None) -> Launch:
    digest = ""  # only its own interpreter knows the file of an installed module
    if module.endswith(".py"):
        path = Path(module).absolute()
        try:
            module, digest = str(path), digest_of(path)
        except OSError as error:
            raise UnknownEnvironmentError(f"cannot read the environment {path}: {error.strerror}") from None
    return Launch(
        label=spec.text,
        python=python or sys.executable,
        module=module,
        attribute=attribute,
        isolated=python is not None,
        variant=spec.variant,
        options=spec.options,
        digest=digest,
    )


_USERS = re.compile(
    r"(?P<name>.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)+):(?P<attribute>[^\W\d]\w*)(?::(?P<variant>.*))?", re.DOTALL
)
"""The name of a class or a function in a file, or in a module of a package."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """A parsed environment name."""

    text: str
    """The original text; part of every task's id."""
    name: str
    """``frozenlake``, or the file or module of a user's environment."""
    attribute: str | None = None
    """The class or the reward function in that file or module."""
    variant: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> EnvironmentSpec:
        """Parse a specification.

        Raises:
            UnknownEnvironmentError: it has no name, or an option without a value.
        """
        plain, _, query = text.partition("?")
        try:
            pairs = parse_qsl(query, strict_parsing=True, keep_blank_values=True) if query else []
        except ValueError:
            raise UnknownEnvironmentError(
                f"the options of the environment {text!r} are {query!r}; write them as key=value&key=value"
            ) from None
        options = {key: _value(value) for key, value in pairs}
        if users := _USERS.fullmatch(plain):
            return cls(text, str(Path(users["name"])), users["attribute"], users["variant"], options)
        name, _, variant = plain.partition(":")
        if not name.strip():
            raise UnknownEnvironmentError(f"the environment is called {text!r}; write NAME, or NAME:VARIANT?key=value")
        return cls(text, name, None, variant or None, options)


def _value(text: str) -> Any:
    """Parse numbers, true, false, and null as in JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
