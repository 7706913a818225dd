"""``prompts use`` and ``prompts add``: asked of a daemon, or written into the store of a stopped one."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_instrumentation.redaction.rules import redactor

from lightning_trainer.cli.daemon.named_daemon import option_of
from lightning_trainer.cli.daemon.running_daemon import running_daemon
from lightning_trainer.cli.prompts.listing import known_versions, split_version
from lightning_trainer.cli.prompts.remote import prompts_at, prompts_of_running
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import ConfigError, UnknownVersionError
from lightning_trainer.prompts.placeholders import in_place_of, misfits
from lightning_trainer.store import prompts
from lightning_trainer.store.places import recorded_place, store_at
from lightning_trainer.store.prompts import PromptVersion


def use_version(config_path: Path | None, named: str, *, endpoint: str | None = None) -> None:
    """Serve a version and say so.

    Raises:
        LightningError: there is no such version, or the daemon failed on it.
    """
    name, number = split_version(named)
    if number is None:
        raise UnknownVersionError(f"which version of {name!r} is to be served? write it as {name}@v3")
    if endpoint is not None:
        with prompts_at(endpoint, config_path) as asked:
            asked.use(name, number)
    else:
        config = load_usual_config(config_path)
        url = running_daemon(config)
        if url is None:
            asyncio.run(_write(config, lambda connection: prompts.use(connection, name, number)))
        else:
            with prompts_of_running(url, config) as asked:
                asked.use(name, number)
    _say(f"programs that ask for {name} with the default that v{number} derives from get v{number}, within ten seconds")
    _say(f"what it earns there: lightning-trainer prompts show {name} --live{option_of(endpoint, config_path)}")


def add_version(
    config_path: Path | None, named: str, file: Path, reason: str | None, *, endpoint: str | None = None
) -> None:
    """Add a text and say which version it is, and why a program might fail with it.

    Raises:
        LightningError: the file cannot be read or contains nothing that could be served, or the version that it
            derives from is unknown.
    """
    text = _text(file)
    name, number = split_version(named)
    if endpoint is not None:
        with prompts_at(endpoint, config_path) as asked:
            parent, before = _parent(asked.versions(name), name, number, text)
            text = in_place_of(before, text)
            made = asked.add(name, text, parent, reason)
    else:
        config = load_usual_config(config_path)
        parent, before = _parent(known_versions(config, name), name, number, text)
        text = in_place_of(before, text)
        made = _added(config, name, text, parent, reason)
    for said in misfits(before, text):
        _say(f"careful, the program may fail with this text where it works with v{parent}: {said}")
    use = f"lightning-trainer prompts use {name}@v{made}{option_of(endpoint, config_path)}"
    _say(f"this is {name}@v{made}; serve it with: {use}")


def _parent(versions: Sequence[PromptVersion], name: str, number: int | None, text: str) -> tuple[int, str]:
    """Return the version that ``text`` derives from, and that version's own text; ``text`` itself if it is unknown."""
    live = [one.version for one in versions if one.state == "live"]
    if number is None and len(live) > 1:
        listed = ", ".join(f"v{one}" for one in live)
        raise UnknownVersionError(
            f"{listed} of {name!r} are served, each to programs with another default; write which one the text "
            f"derives from, as {name}@v{live[-1]}"
        )
    parent = live[0] if number is None else number
    return parent, next((one.text for one in versions if one.version == parent), text)  # the store refuses what is none


def _added(config: Config, name: str, text: str, parent: int, reason: str | None) -> int:
    url = running_daemon(config)
    if url is not None:
        with prompts_of_running(url, config) as asked:
            return asked.add(name, text, parent, reason)
    said = prompts.check_and_redact(name, text, reason, redactor(config.daemon.redact))
    made = asyncio.run(
        _write(config, lambda connection: prompts.add(connection, name, text, parent, "person", said, time.time_ns()))
    )
    return made.version


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8-sig").strip()  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as text: {error}") from error
    prompts.check_text(text)
    return text


async def _write(config: Config, change: Any) -> Any:
    async with store_at(recorded_place(config), config.store) as store:
        return await store.write(change)


def _say(sentence: str) -> None:
    TerminalConsole().print(sentence, markup=False, highlight=False, soft_wrap=True)
