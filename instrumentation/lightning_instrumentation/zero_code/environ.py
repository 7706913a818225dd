"""The launcher's settings for the interpreters below it, as environment variables, which every child inherits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lightning_instrumentation.settings import OFF

SITE = Path(__file__).parent / "site"
BEGUN = "LIGHTNING_RUN_BEGUN"
"""Environment variable, set for the children of the process that has begun the rollout."""
_RUN = "LIGHTNING_RUN"
_HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ProgramRollout:
    """The rollout that covers a whole program run."""

    pid: int | None
    """The process that begins and ends the rollout; all others below only belong to it. None stands for the first
    process that reads this, since on Windows the program is another process than its launcher."""
    task_id: str
    rollout_id: str
    attempt_id: str
    group_id: str
    mode: str


def with_site(pythonpath: str | None) -> str:
    """Return ``PYTHONPATH`` with our folder first, once. No empty entry is added, as it means the working directory."""
    site = str(SITE)
    if not pythonpath:
        return site
    return pythonpath if site in pythonpath.split(os.pathsep) else f"{site}{os.pathsep}{pythonpath}"


def is_below_run(environment: Mapping[str, str]) -> bool:
    """Whether a program was started by ``lightning-trainer run``, or by a runner."""
    return str(SITE) in environment.get("PYTHONPATH", "").split(os.pathsep)


def url_settings(environment: Mapping[str, str]) -> str:
    """Return what follows a rollout in its base URL. Only through this does a program in another language heed the
    environment's choice to record no texts."""
    off = environment.get("LIGHTNING_CAPTURE_CONTENT", "").strip().lower() in OFF
    return "/with/capture_content=0" if off else ""


def beside_proxy(environment: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """Return the variables that keep a program's requests to the daemon, and to this machine, from the environment's
    proxy, which would get the daemon's token. Programs read either spelling, and some of them accept a lone ``*``,
    which is left alone."""
    beside = (environment.get("no_proxy") or environment.get("NO_PROXY") or "").strip()
    if beside != "*":
        hosts = [*filter(None, map(str.strip, beside.split(","))), _HERE, urlsplit(endpoint).hostname or _HERE]
        beside = ",".join(dict.fromkeys(hosts))
    return {"no_proxy": beside, "NO_PROXY": beside}


def write_rollout(environment: dict[str, str], rollout: ProgramRollout | None) -> None:
    """Set or remove the variable that carries the rollout."""
    for name in (_RUN, BEGUN):
        environment.pop(name, None)
    if rollout is not None:
        environment[_RUN] = json.dumps(asdict(rollout))


def read_rollout(environment: Mapping[str, str]) -> ProgramRollout | None:
    """Return the rollout. Raises ValueError or TypeError if the variable was written by another program."""
    text = environment.get(_RUN)
    return ProgramRollout(**json.loads(text)) if text else None
