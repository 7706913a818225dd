"""Decide what the set-up has to do, from facts alone: nothing here touches the network or starts a process.

uv installs one pinned list, which is complete. This file is for what uv cannot do: know how pip is configured on this
machine, find the CPU build of torch (PyPI has only the one for CUDA, three gigabytes), see at once that nothing
changed, notice that an earlier set-up was interrupted, and tell a user what to do about a failure.

Invariant: the stamp says "complete" only for an environment that was made from this list, this pyproject, this folder
and this interpreter. Anything else is repaired: after an interrupted set-up every package is installed again in place
(a half-copied package looks installed), and what is merely out of date is updated.

Standard library only, Python 3.9 and newer: it runs before the environment exists.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit, urlunsplit

PYTHON = "3.11"
REQUIREMENTS = "environment/cpu-py311.txt"
FREE_GIB_NEEDED = 5
"""The installed set takes 3.9 GiB; downloads and the build of the project need some more room."""

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU wheels: ``+cpu`` builds are not on PyPI. No other file names it."""
TORCH_INDEX_VARIABLE = "LIGHTNING_TORCH_INDEX"
"""Environment variable that names a mirror of the index above (a URL or a folder in index layout)."""


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do."""


class Action(Enum):
    """What has to happen to ``.venv``."""

    NOTHING = "nothing"
    UPDATE = "update"
    """It differs from the list: install the differences."""
    REPAIR = "repair"
    """A set-up was interrupted: install all of it again, in place. Without a network nothing is lost."""
    CREATE = "create"
    """There is none that can be kept."""


@dataclass(frozen=True)
class Environment:
    """The state of ``.venv`` on disk."""

    exists: bool
    python: str | None
    """Version of its interpreter (``3.11.7``); None if that is missing or dangling."""
    stamp: Mapping[str, Any] | None
    """What the last set-up left: ``complete``, ``fingerprint``, ``root``; None if it is not readable."""
    missing: tuple[str, ...] = ()
    """Pinned requirements that are not installed at their version."""


def plan_action(environment: Environment, fingerprint: str, root: str) -> tuple[Action, str]:
    """Say what has to happen to ``.venv`` and why.

    Raises:
        SetupError: there is a working environment of another Python that the set-up did not make.
    """
    stamp = environment.stamp
    if not environment.exists:
        return Action.CREATE, "there is no .venv"
    if environment.python is None:
        return Action.CREATE, "its interpreter is missing"
    if not environment.python.startswith(PYTHON + "."):
        if stamp is None:
            raise SetupError(
                f".venv holds Python {environment.python} and was not made by this set-up; Python {PYTHON} is needed. "
                "Move it away (mv .venv .venv-old) and run the command again."
            )
        return Action.CREATE, f"it holds Python {environment.python}"
    if stamp is None:
        return Action.UPDATE, "it was not made by this set-up"
    if stamp.get("root") != root:
        return Action.CREATE, "the project's folder was moved or copied"
    if not stamp.get("complete"):
        return Action.REPAIR, "its set-up was interrupted"
    if stamp.get("fingerprint") != fingerprint:
        return Action.UPDATE, "the list or pyproject.toml changed"
    if environment.missing:
        first, more = environment.missing[0], len(environment.missing) - 1
        return Action.UPDATE, f"{first}{f' and {more} more' if more else ''} not installed"
    return Action.NOTHING, "nothing changed"


def fingerprint(requirements: bytes, pyproject: bytes, python: str | None) -> str:
    """Return a hash of everything that decides what is installed."""
    digest = hashlib.sha256()
    for part in (requirements, pyproject, (python or "").encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def parse_requirements(text: str) -> list[str]:
    """Return the pinned requirements (``name==version``), without comments."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def torch_requirement(requirements: Iterable[str]) -> str | None:
    """Return the one requirement that may come from an index of its own; None if the list does not have it."""
    return next((requirement for requirement in requirements if requirement.startswith("torch==")), None)


def missing_requirements(requirements: Iterable[str], folder_names: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements without a ``NAME-VERSION.dist-info`` among the names in site-packages."""

    def normalized(name: str, version: str) -> tuple[str, str]:
        return re.sub(r"[-_.]+", "-", name).lower(), version

    folders = (folder[: -len(".dist-info")] for folder in folder_names if folder.endswith(".dist-info"))
    installed = {normalized(*folder.rsplit("-", 1)) for folder in folders if "-" in folder}
    return tuple(one for one in requirements if normalized(*one.split("==", 1)) not in installed)


def unsupported_platform(system: str, machine: str, libc: str) -> str | None:
    """Return one sentence if the pinned set cannot be installed here (its wheels are for Linux x86-64, glibc)."""
    if system == "Linux" and machine in ("x86_64", "AMD64") and libc in ("glibc", ""):
        return None
    here = f"{system} {machine}" + (f" with {libc}" if system == "Linux" and libc not in ("glibc", "") else "")
    return (
        f"The pinned CPU set is for Linux on x86-64 with glibc, and this is {here}: use such a machine or container. "
        "The light client (pip install lightning-trainer) runs anywhere."
    )


def uv_environment(pip_config: str, environ: Mapping[str, str], *, uv_has_config_file: bool) -> dict[str, str]:
    """Return environment variables that pass pip's configuration on to uv, without overriding what the user told uv.

    Extra indexes are left out on purpose: pip compares all indexes and takes the best version, uv takes the first index
    that knows a name, so passing them on would hide pinned versions.

    Args:
        pip_config: the output of ``pip config list`` (``section.key='value'`` lines; later win, find-links add up).
    """
    found: dict[str, str] = {}
    links: list[str] = []
    for line in pip_config.splitlines():
        key, _, quoted = line.partition("=")
        section, _, option = key.strip().rpartition(".")
        if section in ("global", "install", ":env:") and option in ("find-links", "index-url", "cert"):
            value = str(ast.literal_eval(quoted))
            links += [link for link in value.split() if option == "find-links" and link not in links]
            found[option] = value
    told = uv_has_config_file or any(name in environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX"))
    additions = {
        "UV_FIND_LINKS": ",".join(links),
        "UV_DEFAULT_INDEX": "" if told else found.get("index-url", ""),
        "SSL_CERT_FILE": found.get("cert", ""),
    }
    return {name: value for name, value in additions.items() if value and name not in environ}


def mend_for(output: str, status: int = 1) -> str:
    """Say what to do about a failed command, from what it printed and its exit status (negative: a signal ended it)."""
    if status < 0:
        return f"Signal {-status} ended it (9: most often too little memory): free some memory and run it again."
    text = output.lower()
    for words, mend in _MENDS:
        if any(word in text for word in words):
            return mend
    return "Read the lines above, mend what they name and run the command again."


# Ordered: a dead network also looks like a missing wheel, a missing torch like any missing package.
_MENDS = (
    (("no space left", "disk quota"), f"Free disk space ({FREE_GIB_NEEDED} GiB are needed) and run it again."),
    (("initialize cache",), "Set UV_CACHE_DIR to a folder that this user can write in and run it again."),
    (("no-record", "no record file"), "Remove .venv and run it again."),
    (
        ("ensurepip", "no module named venv"),
        f"Install Python's venv module (Debian, Ubuntu: apt-get install python{PYTHON}-venv) or uv, and run it again.",
    ),
    (
        ("no interpreter found", "no python"),
        f"Install Python {PYTHON} (Debian, Ubuntu: apt-get install python{PYTHON}-venv) and run it again.",
    ),
    (
        ("certificate", "ssl:"),
        "The package index's certificate was not trusted: set SSL_CERT_FILE (and PIP_CERT) to your certificate bundle.",
    ),
    (
        ("dns", "failed to lookup", "connect", "timed out", "timeout", "temporary failure", "unreachable", "proxy"),
        "The package index did not answer: check the network or HTTPS_PROXY and run it again; downloads are kept.",
    ),
    (("torch==", "torch-2"), "The CPU build of torch was not found there."),
    (
        ("no solution found", "no matching distribution", "not found in the package registry"),
        "A pinned version is not on the configured package index: check that the index (UV_DEFAULT_INDEX, pip's "
        "index-url) is a full mirror of PyPI and run it again.",
    ),
    (("permission denied", "read-only"), "Make the project's folder writable for this user and run it again."),
)


def redacted(text: str) -> str:
    """Return the text without the credentials that a URL in it may carry."""

    def without_user(match: re.Match[str]) -> str:
        parts = urlsplit(match.group())
        return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))

    return re.sub(r"[a-z+]+://[^\s,@/]+@[^\s,]+", without_user, text)
