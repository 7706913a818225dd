"""``lightning-trainer drop``: asked of the running daemon, or written into the store of a stopped one."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from lightning_instrumentation.settings import checked_endpoint
from rich.console import Console

from lightning_trainer.cli.daemon.remote import ask, named_client
from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import DropError, StoreError
from lightning_trainer.rollouts.daemon_client import refusal
from lightning_trainer.store.places import recorded_place, store_at
from lightning_trainer.store.worklist import drops

_DROP = "/lightning/drop"


def drop(
    config_path: Path | None,
    name: str,
    *,
    kind: drops.Kind | None,
    policy: str | None,
    reason: str,
    endpoint: str | None = None,
) -> None:
    """Take a rollout, a group or a recorded step out of training, and say what was removed.

    Args:
        endpoint: URL of the daemon to ask; None: the configuration's daemon or, if it is stopped, its store.

    Raises:
        LightningError: nothing has that name, it was trained already, or the daemon failed on it.
    """
    asked = {"name": name, "kind": kind, "policy": policy, "reason": reason}
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        with named_client(url, config_path) as client:
            dropped = ask(url, client, "POST", _DROP, refused=DropError, json=asked)
    else:
        config = load_usual_config(config_path)
        url = running_daemon(config)
        if url is None:
            dropped = asdict(asyncio.run(_record(config, name, kind, policy, reason)))
        else:
            dropped = _ask(url, config, asked)
    console = TerminalConsole()
    again = f" ({dropped['already']} of them were before)" if dropped["already"] else ""
    attempts = f"{dropped['attempts']} attempt{'s' * (dropped['attempts'] != 1)}"
    _say(console, f"{dropped['kind']} {dropped['name']}: {attempts} will not be trained{again}")
    if dropped["trained"]:
        listed = ", ".join(f"{attempt} (step {step})" for attempt, step in dropped["trained"].items())
        _say(console, f"steps had taken these already, and what was trained stays trained: {listed}")


async def _record(config: Config, name: str, kind: drops.Kind | None, policy: str | None, reason: str) -> drops.Dropped:
    async with store_at(recorded_place(config), config.store) as store:
        return await store.drop(name, reason=reason, kind=kind, policy=policy)


def _ask(url: str, config: Config, body: dict[str, Any]) -> dict[str, Any]:
    try:
        with daemon_client(url, config, timeout_s=60.0) as client:
            answer = client.post(_DROP, json=body)
        if answer.status_code == 409:
            raise DropError(answer.json()["error"]["message"])
        if not answer.is_success:
            raise DropError(refusal(url, answer.status_code, answer.content))
        return answer.json()
    except (httpx.HTTPError, KeyError, ValueError) as error:
        if isinstance(error, DropError):
            raise
        raise StoreError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
