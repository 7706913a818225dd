"""``pause``, ``resume`` and ``label``: asked of the running daemon, or written into the store of a stopped one."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lightning_instrumentation.settings import checked_endpoint
from pydantic import ValidationError

from lightning_trainer.cli.daemon.remote import ask, named_client, policy_there
from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.api.labels import A_PERSON, LabelBody, label, named
from lightning_trainer.errors import ConfigError, StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError
from lightning_trainer.ingest.http.rewards import in_range
from lightning_trainer.ingest.redacting import RedactingSink
from lightning_trainer.store.places import recorded_place, store_at
from lightning_trainer.store.tables import pauses


def pause(config_path: Path | None, policy: str | None, reason: str, *, endpoint: str | None = None) -> None:
    """Pause a policy's training and say so.

    Args:
        endpoint: URL of the daemon to ask; None: the configuration's daemon or, if it is stopped, its store.

    Raises:
        LightningError: there is no such policy, or the daemon or the store failed on it.
    """
    if endpoint is not None:
        _act_elsewhere(endpoint, config_path, policy, "pause", {"reason": reason})
        return
    config = load_usual_config(config_path)
    name = config.named_policy(policy).name
    url = running_daemon(config)
    if url is not None:
        _say(_ask(url, config, _route(name, "pause"), {"reason": reason}))
        return
    asyncio.run(_write(config, lambda connection: pauses.put(connection, name, reason)))
    _say(f"training of {name} is paused when the daemon starts next; serving and capture go on")


def resume(config_path: Path | None, policy: str | None, *, endpoint: str | None = None) -> None:
    """Let a policy's training continue and say so; arguments and errors as of ``pause``."""
    if endpoint is not None:
        _act_elsewhere(endpoint, config_path, policy, "resume", {})
        return
    config = load_usual_config(config_path)
    name = config.named_policy(policy).name
    url = running_daemon(config)
    if url is not None:
        _say(_ask(url, config, _route(name, "resume"), {}))
        return
    was = asyncio.run(_write(config, lambda connection: pauses.remove(connection, name)))
    _say(f"training of {name} goes on when the daemon starts next" if was else f"training of {name} was not paused")


def _act_elsewhere(
    endpoint: str, config_path: Path | None, policy: str | None, action: str, body: dict[str, Any]
) -> None:
    url = checked_endpoint(endpoint)
    with named_client(url, config_path) as client:
        name = policy_there(url, client, policy)
        _say(ask(url, client, "POST", _route(name, action), json=body)["said"])


def _route(policy: str, action: str) -> str:
    return f"/lightning/policies/{quote(policy, safe='')}/{action}"


def label_rollout(
    config_path: Path | None,
    rollout: str,
    *,
    reward: float | None,
    name: str | None,
    note: str | None,
    attempt: str | None,
    by: str | None,
    endpoint: str | None = None,
) -> None:
    """Store a person's reward or note for a rollout and say so.

    Args:
        endpoint: URL of the daemon to ask; None: the configuration's daemon or, if it is stopped, its store.

    Raises:
        LightningError: there is no such rollout, neither a reward nor a note is given, there are several rewards and
            none is named, or the daemon or the store failed on it.
    """
    body = {"reward": reward, "note": note, "attempt_id": attempt, "by": by or A_PERSON}
    body |= {} if name is None else {"name": name}
    try:
        given = LabelBody.model_validate(body)
    except ValidationError as error:
        said = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise ConfigError(f"this is not a label: {said} (--reward, --note)") from None
    try:
        in_range(given.reward or 0.0, "--reward")  # the daemon is asked in JSON, which has no NaN
    except JsonBodyError as error:
        raise ConfigError(str(error)) from None
    path = f"/lightning/rollouts/{quote(rollout, safe='')}/labels"
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        # If no name is given, only the daemon knows which reward its policies are trained by.
        with named_client(url, config_path) as client:
            _say(ask(url, client, "POST", path, json=given.model_dump(exclude_unset=True))["said"])
        return
    config = load_usual_config(config_path)
    try:
        given = named(given, config)
    except ConfigError as error:
        raise ConfigError(f"{error} (--name)") from None
    url = running_daemon(config)
    if url is not None:
        _say(_ask(url, config, path, given.model_dump()))
        return
    _say(asyncio.run(_label(config, rollout, given)))


async def _label(config: Config, rollout: str, body: LabelBody) -> str:
    async with store_at(recorded_place(config), config.store) as store:
        try:
            return await label(store, RedactingSink.of(config.daemon, store), rollout, body)
        except JsonBodyError as error:
            raise StoreError(str(error)) from error


async def _write(config: Config, operation: Any) -> Any:
    async with store_at(recorded_place(config), config.store) as store:
        return await store.write(operation)


def _ask(url: str, config: Config, path: str, body: dict[str, Any]) -> str:
    with daemon_client(url, config, timeout_s=60.0) as client:
        return ask(url, client, "POST", path, json=body)["said"]


def _say(sentence: str) -> None:
    TerminalConsole().print(sentence, markup=False, highlight=False, soft_wrap=True)
