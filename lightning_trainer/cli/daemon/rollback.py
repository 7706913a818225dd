"""``lightning-trainer rollback``: asked of the running daemon, or written into the store of a stopped one; and
``lightning-trainer promote``, which needs a daemon, since it publishes."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx
from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.cli.daemon.remote import named_client
from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.cli.versions import named_version, named_version_there
from lightning_trainer.config import Config
from lightning_trainer.config.file import USUAL_CONFIG
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.errors import RollbackError
from lightning_trainer.store.places import recorded_place, store_at
from lightning_trainer.versions.rollback import record_rollback

_WHEN = {
    "rollback": "it goes back between two steps",
    "promote": "it publishes between two steps, or at once what its canary holds",
}


def rollback(
    config_path: Path | None, policy_name: str | None, version_name: str, *, endpoint: str | None = None
) -> None:
    """Go back to an earlier version and say what happened.

    Args:
        config_path: of the configuration file; None: the usual one.
        policy_name: needed if there are several policies and the version does not name one.
        version_name: ``12``, ``v12``, ``POLICY@v12`` or ``best``.
        endpoint: URL of the daemon to ask; None: the configuration's daemon or, if it is stopped, its store.

    Raises:
        LightningError: there is no way back to that version, or the daemon failed on it.
    """
    if endpoint is not None:
        _act_elsewhere(endpoint, config_path, policy_name, version_name, "rollback")
        return
    config, policy, version = named_version(config_path or USUAL_CONFIG, policy_name, version_name)
    url = running_daemon(config)
    if url is None:
        asyncio.run(_record(config, policy.name, version))
        TerminalConsole().print(f"{policy.name} is at version {version} when the daemon starts next")
        return
    with daemon_client(url, config) as client:
        _act(client, url, policy.name, version, "rollback")


def promote(
    config_path: Path | None, policy_name: str | None, version_name: str, *, endpoint: str | None = None
) -> None:
    """Serve a version that was held back and say what happened; arguments as of ``rollback``.

    Raises:
        LightningError: no daemon runs, there is no such version, or trainer and engine do not agree on it.
    """
    if endpoint is not None:
        _act_elsewhere(endpoint, config_path, policy_name, version_name, "promote")
        return
    config, policy, version = named_version(config_path or USUAL_CONFIG, policy_name, version_name)
    url = running_daemon(config)
    if url is None:
        raise RollbackError(
            "no daemon runs here, and a version is published by one: start `lightning-trainer serve`, then promote it"
        )
    with daemon_client(url, config) as client:
        _act(client, url, policy.name, version, "promote")


def _act_elsewhere(
    endpoint: str, config_path: Path | None, policy_name: str | None, version_name: str, action: str
) -> None:
    url = checked_endpoint(endpoint)
    with named_client(url, config_path) as client:
        policy, version = named_version_there(url, client, policy_name, version_name)
        _act(client, url, policy, version, action)


def _act(client: httpx.Client, url: str, policy: str, version: int, action: str) -> None:
    console = TerminalConsole()
    console.print(f"asking the daemon at {url}; {_WHEN[action]}")
    _ask(client, url, policy, version, action)
    console.print(f"{policy} serves version {version} and trains on from it")


def _ask(client: httpx.Client, url: str, policy: str, version: int, action: str) -> None:
    try:
        # No time limit: the current step ends first, and recorded steps may have to be repeated.
        answer = client.post(
            f"/lightning/policies/{quote(policy, safe='')}/{action}",
            json={"version": version},
            timeout=httpx.Timeout(None, connect=10.0),
        )
    except httpx.HTTPError as error:
        raise RollbackError(
            f"the daemon at {url} did not answer to the end ({type(error).__name__}); see `lightning-trainer versions` "
            "where it runs, or its Versions page, for the version that is served"
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
