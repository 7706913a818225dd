"""``prompts list`` and ``prompts show``: read from the store itself, with or without a daemon, or asked of a daemon."""

import difflib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from lightning_trainer.cli.prompts.remote import prompts_at
from lightning_trainer.cli.terminal.console import TerminalConsole, visible, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import ConfigError, UnknownVersionError
from lightning_trainer.prompts.earned import Earned, earned_live
from lightning_trainer.store import prompts
from lightning_trainer.store.places import place_of, reading
from lightning_trainer.store.prompts import PromptVersion

_REASON_SHOWN = 200


def list_prompts(config_path: Path | None, *, as_json: bool, endpoint: str | None = None) -> None:
    """Print each prompt, how many versions it has, and which of them are served.

    Raises:
        LightningError: the configuration or the store cannot be read, or the daemon does not answer.
    """
    if endpoint is not None:
        with prompts_at(endpoint, config_path) as asked:
            found = asked.names()
    else:
        with reading(place_of(load_usual_config(config_path))) as connection:
            found = prompts.names(connection)
    if as_json:
        print(visible_json([asdict(one) for one in found]))
        return
    console = TerminalConsole()
    if not found:
        console.print('no program has asked for a prompt yet; write lt.prompt("name", "the text") in one', markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("prompt", "versions", "served"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(one.name, str(one.versions), ", ".join(f"v{version}" for version in one.live))
    console.print(table, markup=False)


def show_prompt(
    config_path: Path | None,
    name: str,
    *,
    diff: bool,
    as_json: bool,
    live: bool = False,
    endpoint: str | None = None,
) -> None:
    """Print a prompt's versions; or the text of one version, or what that version changes of its parent.

    Args:
        diff: print what one version changes; in JSON as ``diff``, None if it has no parent.
        live: with all versions, also print what each earned in live attempts.

    Raises:
        ConfigError: the configuration cannot be read, or an option does not go with what is named.
        LightningError: the store cannot be read, the daemon does not answer, or there is no such prompt or version.
    """
    named = name
    name, number = split_version(named)
    if live and number is not None:
        raise ConfigError(
            f"--live tells of all versions of a prompt and not of one, and this is {named!r}: write {name!r}, or leave "
            "it out"
        )
    if diff and number is None:
        raise ConfigError(
            f"--diff shows what one version changes of its parent, and this is {named!r}: write it as {name}@v3, or "
            "leave it out"
        )
    if number is not None:
        found, parent = _version_and_parent(config_path, endpoint, name, number)
        changes = _changes(parent, found) if diff and parent is not None else None
        if as_json:
            print(visible_json({**asdict(found), **({"diff": changes} if diff else {})}))
        else:
            print(visible(found.text if changes is None else changes))
        return
    versions, earned = _versions_and_earned(config_path, endpoint, name, live=live)
    if as_json:
        print(visible_json([{**asdict(one), **_live_of(earned, one.version)} for one in versions]))
    else:
        _print_table(versions, earned)
        if live and not earned:
            TerminalConsole().print(
                f"no live attempt has asked for {name!r} yet: an attempt is what a program does inside "
                "lt.rollout(...), or all of a program started with `lightning-trainer run --task ID`",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _versions_and_earned(
    config_path: Path | None, endpoint: str | None, name: str, *, live: bool
) -> tuple[list[PromptVersion], dict[int, Earned] | None]:
    if endpoint is not None:
        with prompts_at(endpoint, config_path) as asked:
            return asked.versions(name), asked.earned(name) if live else None
    config = load_usual_config(config_path)
    versions = known_versions(config, name)
    if not live:
        return versions, None
    with reading(place_of(config)) as connection:
        return versions, earned_live(connection, name)


def _live_of(earned: dict[int, Earned] | None, version: int) -> dict[str, Any]:
    if earned is None:
        return {}
    return {"live": asdict(earned[version]) if version in earned else None}


def _version_and_parent(
    config_path: Path | None, endpoint: str | None, name: str, number: int
) -> tuple[PromptVersion, PromptVersion | None]:
    if endpoint is not None:
        with prompts_at(endpoint, config_path) as asked:
            found = asked.version(name, number)
            return found, None if found.parent is None else asked.version(name, found.parent)
    with reading(place_of(load_usual_config(config_path))) as connection:
        found = prompts.select_one(connection, name, number)
        return found, None if found.parent is None else prompts.select_one(connection, name, found.parent)


def known_versions(config: Config, name: str) -> list[PromptVersion]:
    """Return all versions of a prompt.

    Raises:
        UnknownVersionError: there is no such prompt.
        StoreError: the store cannot be read.
    """
    with reading(place_of(config)) as connection:
        versions = prompts.select(connection, name)
    if not versions:
        raise UnknownVersionError(prompts.no_prompt(name))
    return versions


def split_version(name: str) -> tuple[str, int | None]:
    """Return the name and the number of ``NAME@vN``, or the name alone.

    Raises:
        UnknownVersionError: what follows the ``@`` is not a version.
    """
    name, at, version = name.partition("@")
    digits = version.removeprefix("v")
    if not at:
        return name, None
    if not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise UnknownVersionError(f"version {version!r} of prompt {name!r} is not a version; write it as {name}@v3")
    return name, int(digits)


def _changes(parent: PromptVersion, child: PromptVersion) -> str:
    before, after = (one.text.splitlines() for one in (parent, child))
    return "\n".join(difflib.unified_diff(before, after, parent.label, child.label, lineterm=""))


def _print_table(versions: Sequence[PromptVersion], earned: dict[int, Earned] | None) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("version", "from", "state", "made by"):
        table.add_column(heading, no_wrap=True)
    stages = list(dict.fromkeys(stage for one in versions for stage in one.scores))
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    for heading in () if earned is None else ("live attempts", "live reward (95 %)"):
        table.add_column(heading, justify="right")
    table.add_column("made, UTC")
    for one in versions:
        scores = [one.scores.get(stage) for stage in stages]
        table.add_row(
            f"v{one.version}",
            "" if one.parent is None else f"v{one.parent}",
            one.state,
            one.made_by,
            *("" if score is None else f"{score['mean']:.3f} of {score['tasks']:.0f}" for score in scores),
            *(() if earned is None else _live_cells(earned.get(one.version))),
            f"{datetime.fromtimestamp(one.created_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}",
            style="bold" if one.state == "live" else None,
        )
    console = TerminalConsole()
    console.print(table, markup=False)
    for one in versions:
        if one.reason:
            reason = " ".join(one.reason.split())
            shown = reason if len(reason) <= _REASON_SHOWN else f"{reason[:_REASON_SHOWN]} ..."
            console.print(f"v{one.version}: {shown}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _live_cells(earned: Earned | None) -> tuple[str, str]:
    if earned is None:
        return "", ""
    attempts = f"{earned.attempts}{'+' * earned.more}"
    if earned.failed:
        attempts += f", {earned.failed} failed"
    if earned.mean is None:
        return attempts, "none yet"
    between = "" if earned.interval is None else f" ({earned.interval[0]:.3f} to {earned.interval[1]:.3f})"
    return attempts, f"{earned.mean:.3f} of {earned.rewarded}{between}"
