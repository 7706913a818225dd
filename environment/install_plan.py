"""What the set-up has to do, decided from facts alone: nothing here touches the network or starts a process.

Invariant: the stamp says "complete" only for an environment that holds every pinned version, made from this list, this
pyproject, this folder and this interpreter. Everything else is mended: an interrupted creation is begun anew, an
interrupted update installs every package again in place (a half-copied package looks installed), and what is merely
out of date is updated.

Standard library only, Python 3.9 and newer: it runs before the environment exists.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote, urlsplit, urlunsplit

PYTHON = "3.11"
REQUIREMENTS = "environment/cpu-py311.txt"
STAMP = "lightning-setup.json"
FREE_GIB_NEEDED = 5
"""The installed set takes 3.9 GiB; downloads and the build of the project need some room beside it."""

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU wheels: ``+cpu`` builds are not on PyPI. The only place that names it."""
TORCH_INDEX_VARIABLE = "LIGHTNING_TORCH_INDEX"
"""Environment variable that names a mirror of the index above (a URL or a folder in index layout)."""

_STAMP_FORMAT = 1


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do."""


class Action(Enum):
    """What has to happen to ``.venv``."""

    NOTHING = "nothing"
    UPDATE = "update"
    """A finished or foreign environment that differs from the list: install what differs."""
    REPAIR = "repair"
    """An update was interrupted: install all of it again, in place. Without a network nothing is lost."""
    CREATE = "create"
    """There is none."""
    RECREATE = "recreate"
    """It is broken, was moved, is another Python of ours, or its creation was interrupted."""

    @property
    def makes_anew(self) -> bool:
        return self in (Action.CREATE, Action.RECREATE)


class Progress(str, Enum):
    """How far a run of the set-up came."""

    CREATING = "creating"
    UPDATING = "updating"
    COMPLETE = "complete"


@dataclass(frozen=True)
class Stamp:
    """What the last run of the set-up left in ``.venv``."""

    progress: Progress
    fingerprint: str
    root: str

    def to_json(self) -> str:
        return json.dumps({"format": _STAMP_FORMAT, **self.__dict__}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Stamp | None:
        """Read a stamp; None when it is not one (an interrupted write, another format)."""
        try:
            document = json.loads(text)
            if document.pop("format") != _STAMP_FORMAT:
                return None
            return cls(Progress(document.pop("progress")), **document)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True)
class Environment:
    """``.venv`` as it is on disk."""

    exists: bool
    python: str | None
    """Version of an interpreter that is there (``3.11.7``), None when it is missing or dangling."""
    stamp: Stamp | None
    missing: tuple[str, ...]
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
        return Action.RECREATE, "its interpreter is missing"
    if not environment.python.startswith(PYTHON + "."):
        if stamp is None:
            raise SetupError(
                f".venv holds Python {environment.python} and was not made by this set-up; Python {PYTHON} is needed. "
                "Move it away (mv .venv .venv-old) and run the command again."
            )
        return Action.RECREATE, f"it holds Python {environment.python}"
    if stamp is None:
        return Action.UPDATE, "it was not made by this set-up"
    if stamp.root != root:
        return Action.RECREATE, "the project's folder was moved or copied"
    if stamp.progress is Progress.CREATING:
        return Action.RECREATE, "its installation was interrupted"
    if stamp.progress is Progress.UPDATING:
        return Action.REPAIR, "an update of it was interrupted"
    if stamp.fingerprint != fingerprint:
        return Action.UPDATE, "the list or pyproject.toml changed"
    if environment.missing:
        first, more = environment.missing[0], len(environment.missing) - 1
        return Action.UPDATE, f"{first}{f' and {more} more' if more else ''} not installed"
    return Action.NOTHING, "nothing changed"


def fingerprint(requirements: bytes, pyproject: bytes, python: str | None) -> str:
    """Hash of all that decides what is installed."""
    digest = hashlib.sha256()
    for part in (requirements, pyproject, (python or "").encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def parse_requirements(text: str) -> list[str]:
    """Return the pinned requirements (``name==version``), without comments."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def torch_requirement(requirements: Iterable[str]) -> str | None:
    """Return the one requirement that may come from an index of its own, None when it is not among them."""
    return next((requirement for requirement in requirements if requirement.startswith("torch==")), None)


def missing_requirements(requirements: Iterable[str], folder_names: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements without a ``NAME-VERSION.dist-info`` among the names in site-packages."""
    installed = set()
    for folder in folder_names:
        if folder.endswith(".dist-info"):
            name, _, version = folder[: -len(".dist-info")].rpartition("-")
            installed.add((_normalized(name), version))
    return tuple(
        requirement
        for requirement in requirements
        if (_normalized(requirement.partition("==")[0]), requirement.partition("==")[2]) not in installed
    )


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unsupported_platform(system: str, machine: str, libc: str) -> str | None:
    """Return one sentence when the pinned set cannot be installed here (its wheels are for Linux x86-64, glibc)."""
    if system == "Linux" and machine in ("x86_64", "AMD64") and libc in ("glibc", ""):
        return None
    here = f"{system} {machine}" + (f" with {libc}" if system == "Linux" and libc not in ("glibc", "") else "")
    return (
        f"The pinned CPU set is for Linux on x86-64 with glibc, and this is {here}: use such a machine or container. "
        "The light client (pip install lightning-trainer) runs anywhere."
    )


@dataclass(frozen=True)
class PipSettings:
    """What pip is configured with; uv does not read it by itself."""

    find_links: tuple[str, ...] = ()
    index_url: str | None = None
    certificates: str | None = None


def parse_pip_config(listing: str) -> PipSettings:
    """Read the output of ``pip config list`` (``section.key='value'`` lines; later lines win, find-links add up).

    Extra indexes are left out on purpose: pip compares all indexes and takes the best version, uv takes the first
    index that knows a name, so handing them on would hide pinned versions.
    """
    find_links: list[str] = []
    index_url = certificates = None
    for line in listing.splitlines():
        key, separator, quoted = line.partition("=")
        section, _, option = key.strip().rpartition(".")
        if not separator or section not in ("global", "install", ":env:"):
            continue
        try:
            value = str(ast.literal_eval(quoted))
        except (ValueError, SyntaxError):
            continue
        if option == "find-links":
            find_links += [link for link in value.split() if link not in find_links]
        elif option == "index-url":
            index_url = value
        elif option == "cert":
            certificates = value
    return PipSettings(tuple(find_links), index_url, certificates)


def uv_environment(pip: PipSettings, environ: Mapping[str, str], *, uv_has_config_file: bool) -> dict[str, str]:
    """Environment variables that tell uv what pip knows; what the user told uv itself is never overridden."""
    additions: dict[str, str] = {}
    if pip.find_links and "UV_FIND_LINKS" not in environ:
        additions["UV_FIND_LINKS"] = ",".join(pip.find_links)
    told = any(name in environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX"))
    if pip.index_url and not told and not uv_has_config_file:
        additions["UV_DEFAULT_INDEX"] = pip.index_url
    if pip.certificates and "SSL_CERT_FILE" not in environ:
        additions["SSL_CERT_FILE"] = pip.certificates
    return additions


class TorchSource(Enum):
    """Where the torch wheel is taken from."""

    CONFIGURED = "the configured indexes"
    PYTORCH = "PyTorch's CPU index"
    OVERRIDE = TORCH_INDEX_VARIABLE


def torch_sources(
    torch: str, *, override: str | None, link_contents: Mapping[str, Sequence[str]], other_index: bool
) -> list[TorchSource]:
    """Return the places to take torch from, in the order to try them.

    Args:
        torch: the pinned requirement (``torch==2.13.0+cpu``).
        override: value of LIGHTNING_TORCH_INDEX.
        link_contents: file names in each local find-links folder; remote ones are empty.
        other_index: an index other than PyPI is configured; it may well carry the wheel.
    """
    if override:
        return [TorchSource.OVERRIDE]
    wheel = f"torch-{torch.partition('==')[2]}-"
    names = [unquote(name) for names in link_contents.values() for name in names]
    if any(name.startswith(wheel) and name.endswith(".whl") for name in names):
        return [TorchSource.CONFIGURED]
    if other_index or any(not names for names in link_contents.values()):
        return [TorchSource.CONFIGURED, TorchSource.PYTORCH]
    return [TorchSource.PYTORCH]


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
    (
        ("torch==", "torch-2"),
        "The CPU build of torch was not found there.",
    ),
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
