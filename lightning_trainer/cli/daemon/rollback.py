"""``lightning-trainer rollback``: asked of the running daemon, or written into the store of a stopped one; and
``lightning-trainer promote``, which needs a daemon, since it publishes."""

import asyncio
from pathlib import Path

import httpx

from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.cli.versions import read_versions
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.errors import RollbackError
from lightning_trainer.store.places import recorded_place, store_at
from lightning_trainer.versions.rollback import record_rollback

_BEST = "best"


def rollback(config_path: Path, policy_name: str | None, version_name: str) -> None:
    """Go back and say what happened.

    Args:
        config_path: of the configuration file.
        policy_name: needed where there are several policies and the version does not name one.
        version_name: ``12``, ``v12``, ``POLICY@v12`` or ``best``.

    Raises:
        LightningError: there is no such way back, or the daemon failed on it.
    """
    config, policy, version = _named(config_path, policy_name, version_name)
    console = TerminalConsole()
    url = running_daemon(config)
    if url is None:
        asyncio.run(_record(config, policy.name, version))
        console.print(f"{policy.name} is at version {version} when the daemon starts next")
        return
    console.print(f"asking the daemon at {url}; it goes back between two steps")
    with daemon_client(url, config) as client:
        _ask(client, url, policy.name, version, "rollback")
    console.print(f"{policy.name} serves version {version} and trains on from it")


def promote(config_path: Path, policy_name: str | None, version_name: str) -> None:
    """Serve a version that was held back and say what happened; arguments as of ``rollback``.

    Raises:
        LightningError: no daemon runs, there is no such version, or trainer and engine do not agree on it.
    """
    config, policy, version = _named(config_path, policy_name, version_name)
    url = running_daemon(config)
    if url is None:
        raise RollbackError(
            "no daemon runs here, and a version is published by one: start `lightning-trainer serve`, then promote it"
        )
    console = TerminalConsole()
    console.print(f"asking the daemon at {url}; it publishes between two steps, or at once what its canary holds")
    with daemon_client(url, config) as client:
        _ask(client, url, policy.name, version, "promote")
    console.print(f"{policy.name} serves version {version} and trains on from it")


def _named(config_path: Path, policy_name: str | None, version_name: str) -> tuple[Config, PolicyConfig, int]:
    config = load_config(config_path)
    named, _, version_name = version_name.rpartition("@")
    if named and policy_name not in (None, named):
        raise RollbackError(f"--policy is {policy_name!r} and the version is one of {named!r}; name one of them")
    policy = config.named_policy(policy_name or named or None)
    return config, policy, _number(config, policy, version_name)


def _number(config: Config, policy: PolicyConfig, name: str) -> int:
    if name == _BEST:
        scored = [row for row in read_versions(config, policy) if row["held_out"] is not None]
        if not scored:
            raise RollbackError(f"no version of {policy.name!r} has a held-out score; name one by its number")
        return max(scored, key=lambda row: (row["held_out"] or 0.0, row["version"]))["version"]
    digits = name.removeprefix("v")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise RollbackError(f"version {name!r} is not a version; write it as 12, v12 or best")
    return int(digits)


def _ask(client: httpx.Client, url: str, policy: str, version: int, action: str) -> None:
    try:
        # No limit: the present step ends first, and recorded steps may have to be repeated.
        answer = client.post(
            f"/lightning/policies/{policy}/{action}",
            json={"version": version},
            timeout=httpx.Timeout(None, connect=10.0),
        )
    except httpx.HTTPError as error:
        raise RollbackError(
            f"the daemon at {url} did not answer to the end ({type(error).__name__}); see `lightning-trainer versions` "
            "for the version that is served"
        ) from error
    if not answer.is_success:
        raise RollbackError(_reason(answer))


def _reason(answer: httpx.Response) -> str:
    try:
        return answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the daemon answered {answer.status_code}: {answer.text[:200]}"


async def _record(config: Config, policy: str, version: int) -> None:
    place = recorded_place(config)
    checkpoints = CheckpointFolder(config.shared_dir / "checkpoints" / policy, keep=1).steps()
    async with store_at(place, config.store) as store:
        await record_rollback(store, policy, version, checkpoints=checkpoints)
