"""``prompts use`` and ``prompts add``: asked of the running daemon, or written into the store of a stopped one."""

import asyncio
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.prompts.listing import known_versions, split_version
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import ConfigError, StoreError, UnknownVersionError
from lightning_trainer.prompts.placeholders import in_place_of, misfits
from lightning_trainer.rollouts.daemon_client import refusal
from lightning_trainer.store import prompts
from lightning_trainer.store.places import recorded_place, store_at


def use_version(config_path: Path | None, named: str) -> None:
    """Serve a version and say so.

    Raises:
        LightningError: there is no such version, or the daemon failed on it.
    """
    config = load_usual_config(config_path)
    name, number = split_version(named)
    if number is None:
        raise UnknownVersionError(f"which version of {name!r} is to be served? write it as {name}@v3")
    url = running_daemon(config)
    if url is None:
        asyncio.run(_write(config, lambda connection: prompts.use(connection, name, number)))
    else:
        _ask(url, config, f"{quote(name, safe='')}/live", {"version": number})
    _say(f"programs that ask for {name} with the default that v{number} derives from get v{number}, within ten seconds")


def add_version(config_path: Path | None, named: str, file: Path, reason: str | None) -> None:
    """Add a text and say which version it is, and what of it a program could not fill in.

    Raises:
        LightningError: the file cannot be read or is no text that could be served, or the text that it derives from is
            not known.
    """
    config = load_usual_config(config_path)
    text = _text(file)
    name, number = split_version(named)
    versions = known_versions(config, name)
    live = [one.version for one in versions if one.state == "live"]
    if number is None and len(live) > 1:
        listed = ", ".join(f"v{one}" for one in live)
        raise UnknownVersionError(
            f"{listed} of {name!r} are served, each to programs with another default; write which one the text "
            f"derives from, as {name}@v{live[-1]}"
        )
    parent = live[0] if number is None else number
    before = next((one.text for one in versions if one.version == parent), text)  # the store says that there is none
    text = in_place_of(before, text)
    url = running_daemon(config)
    if url is None:
        made = asyncio.run(
            _write(
                config,
                lambda connection: prompts.add(connection, name, text, parent, "person", reason, time.time_ns()),
            )
        ).version
    else:
        body = {"text": text, "parent": parent, "reason": reason}
        made = _ask(url, config, f"{quote(name, safe='')}/versions", body)["version"]
    for said in misfits(before, text):
        _say(f"careful, the program may fail with this text where it works with v{parent}: {said}")
    _say(f"this is {name}@v{made}; serve it with: lightning-trainer prompts use {name}@v{made}")


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as text: {error}") from error
    prompts.check_text(text)
    return text


async def _write(config: Config, change: Any) -> Any:
    async with store_at(recorded_place(config), config.store) as store:
        return await store.write(change)


def _ask(url: str, config: Config, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        with daemon_client(url, config, timeout_s=60.0) as client:
            answer = client.post(f"/lightning/prompts/{path}", json=body)
        if not answer.is_success:
            raise UnknownVersionError(refusal(url, answer.status_code, answer.content))
        return answer.json()
    except (httpx.HTTPError, ValueError) as error:
        if isinstance(error, UnknownVersionError):
            raise
        raise StoreError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error


def _say(sentence: str) -> None:
    TerminalConsole().print(sentence, markup=False, highlight=False, soft_wrap=True)
