"""What `lightning-trainer run` does for a program that is not Python: it is captured at the gateway, by its base URL.

Nothing can be put into such a program, but its clients read environment variables. They are set if a policy claims the
agent, just as calls of Python programs are routed then; else the user who started the program is told what to set.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from urllib.parse import quote

from lightning_instrumentation.access.proof import Access, UnprovenDaemonError
from lightning_instrumentation.access.tls import AUTHORITY_VARIABLES, CA_FILE
from lightning_instrumentation.routing.selection import SelectionError, fetch_selection
from lightning_instrumentation.settings import OFF, checked_endpoint
from lightning_instrumentation.zero_code.environ import beside_proxy, read_rollout, url_settings

_DEFAULT_AGENT = "default"
"""What the gateway calls an agent that a rollout's URL does not name."""
_RUNTIMES = frozenset(
    (
        *("node", "nodejs", "bun", "deno", "npm", "npx", "pnpm", "yarn", "tsx", "ts-node"),
        *("ruby", "php", "perl", "java", "kotlin", "go", "dotnet", "cargo", "elixir", "swift"),
    )
)
_STARTERS = frozenset(
    (
        *("sh", "bash", "dash", "zsh", "fish", "ksh", "busybox", "env", "time", "timeout", "nice", "nohup", "setsid"),
        *("stdbuf", "taskset", "xargs", "sudo", "script", "strace", "make", "just", "uv", "uvx", "poetry", "pdm"),
        *("pipenv", "pipx", "hatch", "rye", "conda", "mamba", "micromamba", "pixi", "tox", "nox"),
        *("docker", "podman", "ssh", "srun", "mpirun"),
    )
)
"""Programs that start other programs, which may be Python."""
_HEAD = 256


def is_python(path: str) -> bool:
    """Whether it is Python, or a script: console scripts name a Python, and version managers' shims become one."""
    return _name(path).startswith(("python", "pypy")) or _interpreter(path) is not None


def other_language(path: str) -> bool:
    """Whether a program neither is Python nor starts it, as far as can be told."""
    name = _interpreter(path) or _name(path)
    if name.startswith(("python", "pypy")):
        return False
    return name in _RUNTIMES or (_interpreter(path) is None and name not in _STARTERS)


def lead(environment: MutableMapping[str, str], program: str, agent: str | None) -> str:
    """Set base URLs if a policy claims the agent; return what to tell the user who started the program."""
    access = _access(environment)
    endpoint, named = access.endpoint, environment.get(CA_FILE)
    agent = agent or environment.get("LIGHTNING_AGENT") or _DEFAULT_AGENT
    around = _attempt_around(environment)
    rollout = quote(around or uuid.uuid4().hex, safe="")
    place = f"{endpoint}/rollouts/{rollout}/agents/{quote(agent, safe='')}{url_settings(environment)}"
    policy, reason = _claiming(access, agent, environment)
    if policy is None:
        return (
            f"{program!r} is not a Python program, and of one in another language nothing is captured here: {reason}. "
            f"Its calls are recorded where its client has the base URL {place}/v1 (OPENAI_BASE_URL; ANTHROPIC_BASE_URL "
            "without /v1) and a policy claims its agent, or is the model that it names"
        )
    urls = {"OPENAI_BASE_URL": f"{place}/v1", "OPENAI_API_BASE": f"{place}/v1", "ANTHROPIC_BASE_URL": place}
    environment.update(urls | beside_proxy(environment, endpoint))
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        # The daemon expects its token as the key; a client without any key does not start.
        environment[key] = access.token or environment.get(key) or "none"
    if named:  # other languages' names for the variable
        for variable in AUTHORITY_VARIABLES:
            environment.setdefault(variable, named)
    ending = "Its calls belong to the attempt around it"
    if around is None:
        ending = f"Reward and end it: POST {endpoint}/rollouts/{rollout}/end"
    return (
        f"{program!r} is not a Python program: the policy {policy!r} answers its agent {agent!r} through the gateway, "
        f"by {', '.join(urls)} ({place}). {ending}"
    )


def unanswered(environment: Mapping[str, str], program: str) -> str | None:
    """Return what to tell the user if no policy answers at the rollout's URL that a program is given; else None."""
    import http.client

    path = shutil.which(program)
    if path is None or not other_language(path):
        return None
    access = _access(environment)
    try:
        if fetch_selection(access).policies:
            return None
    except (OSError, http.client.HTTPException, SelectionError, UnprovenDaemonError):
        return None  # a runner says what is wrong with the daemon
    return (
        f"{program!r} is not a Python program, and the daemon at {access.endpoint} has no [[policy]] that answers at "
        "LIGHTNING_ROLLOUT_URL: its calls are not captured; add a [[policy]], or have the program send OpenTelemetry "
        f"spans to {access.endpoint}/v1/traces"
    )


def _attempt_around(environment: Mapping[str, str]) -> str | None:
    """Return the id of the attempt that the program is started in; None if a rollout's URL cannot name one."""
    around = read_rollout(environment)
    return around.rollout_id if around is not None and around.rollout_id == around.attempt_id else None


def _access(environment: Mapping[str, str]) -> Access:
    named = environment.get(CA_FILE)
    return Access(
        checked_endpoint(environment.get("LIGHTNING_ENDPOINT")),
        environment.get("LIGHTNING_TOKEN") or None,
        ca_file=Path(named).expanduser() if named else None,
    )


def _claiming(access: Access, agent: str, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the policy that claims the agent, or None and why there is none."""
    import http.client

    if environment.get("LIGHTNING_ROUTE", "").strip().lower() in OFF:
        return None, "LIGHTNING_ROUTE is off"
    try:
        selection = fetch_selection(access)
    except SelectionError as error:
        if error.status in (401, 403):
            return None, f"the daemon at {access.endpoint} refuses our token; set LIGHTNING_TOKEN"
        return None, f"what answers at {access.endpoint} is not a lightning-trainer daemon ({error}); check --endpoint"
    except UnprovenDaemonError as error:
        return None, str(error)
    except OSError as error:
        return None, f"no daemon answers at {access.endpoint} ({error}); start it with `lightning-trainer serve`"
    except http.client.HTTPException:
        return None, f"what answers at {access.endpoint} does not speak HTTP; check --endpoint"
    if not selection.policies:
        return None, f"the daemon at {access.endpoint} has no [[policy]]: it records what comes to it as spans"
    return selection.policy_of(
        agent
    ), f"no policy claims the agent {agent!r}; name one that a policy lists with --agent"


def _name(path: str) -> str:
    return re.sub(r"(\.exe|[-.0-9]+)$", "", os.path.basename(path).lower())


def _interpreter(path: str) -> str | None:
    """Return the program that a script names in its first line; None if it is not a script."""
    try:
        with open(path, "rb") as program:
            line = program.read(_HEAD).partition(b"\n")[0].decode(errors="replace")
    except OSError:
        return None
    if not line.startswith("#!"):
        return None
    words = [word for word in line[2:].split() if not word.startswith("-") and "=" not in word]
    return _name(words[1] if len(words) > 1 and _name(words[0]) == "env" else words[0] if words else "sh")
