"""``lightning-trainer feedback`` and ``forget``: what each source said and how far it is believed; erasing it again."""

import asyncio
from pathlib import Path
from typing import Any

from lightning_instrumentation.settings import checked_endpoint
from rich.markup import escape
from rich.table import Table

from lightning_trainer.cli.daemon.named_daemon import option_of
from lightning_trainer.cli.daemon.remote import ask, named_client
from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.api.feedback import forget_and_say, report_and_tasks, still_in
from lightning_trainer.errors import ForgetError
from lightning_trainer.explain.finding import counted
from lightning_trainer.store.places import place_of, reading, recorded_place, store_at
from lightning_trainer.store.tables.feedback import READ

_SHOWN = 30
_REPORT, _FORGET = "/lightning/feedback", "/lightning/forget"


def feedback(config_path: Path | None, *, as_json: bool, endpoint: str | None = None) -> None:
    """Print what feedback there is, from the store itself, with or without a daemon, or from a daemon elsewhere.

    Raises:
        LightningError: the configuration or the store cannot be read, or the daemon does not answer.
    """
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        with named_client(url, config_path) as client:
            report = ask(url, client, "GET", _REPORT)
    else:
        config = load_usual_config(config_path)
        with reading(place_of(config)) as connection:
            report = report_and_tasks(connection, config.feedback)
    if as_json:
        print(visible_json(report))
        return
    console = TerminalConsole()
    states = report["states"]
    listed = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    pieces = counted(report["feedback"], "piece")
    _say(console, f"{pieces} of feedback{': ' * bool(listed)}{listed}; {counted(report['rewards'], 'reward')}")
    if report["too_little_weight"]:
        _say(console, f"{report['too_little_weight']} more would be, and their sources weigh too little (min_weight)")
    if task_named := report.get("task_named"):  # an older daemon does not say
        pieces = counted(task_named["feedback"], "piece")
        _say(
            console,
            f"{pieces} of feedback found no rollout, because a task is named in its place ({task_named['such_as']!r}, "
            "say): a "
            "rollout has an id of its own, which lt.rollout(task, rollout_id=...) sets",
        )
    if report["sources"]:
        console.print(_table(report["sources"][:_SHOWN]))
    if report["sources_total"] > _SHOWN:
        _say(console, f"{report['sources_total'] - _SHOWN} more sources that weigh as much or more: --json")


def _table(sources: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("source", overflow="fold")
    for heading in ("weight", "said", "counted", "quarantined", "capped", "verified", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in sources:
        table.add_row(
            escape(one["source"]),
            f"{one['weight']:.2f}",
            *(str(one[name]) for name in ("said", "counted", "quarantined", "capped", "verified", "wrong_verified")),
            "trusted" if one["trusted"] else "[yellow]mostly wrong[/]" if one["suspicious"] else "",
        )
    return table


def forget(config_path: Path | None, *, endpoint: str | None = None, **named: str | None) -> None:
    """Erase what a source said, or everything of a rollout, of a task, or of a trace or a response outside of rollouts,
    and say which versions were trained with it.

    Args:
        endpoint: URL of the daemon to ask; None: the configuration's daemon or, if it is stopped, its store.
        named: one of ``source``, ``rollout``, ``task``, ``trace`` and ``response``.

    Raises:
        LightningError: nothing with that name is stored, or the daemon failed on it.
    """
    given = {kind: name for kind, name in named.items() if name is not None}
    if len(given) != 1:
        raise ForgetError(
            "name what to forget: --source NAME, --rollout ID, --task NAME, --trace ID or --response ID, one of them"
        )
    ((kind, name),) = given.items()
    at = ""
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        with named_client(url, config_path) as client:
            done = ask(url, client, "POST", _FORGET, refused=ForgetError, json=given)
        at = f" by the daemon at {url}"
    else:
        config = load_usual_config(config_path)
        url = running_daemon(config)
        if url is None:
            done = asyncio.run(_erase(config, kind, name))
        else:
            with daemon_client(url, config, timeout_s=60.0) as client:
                done = ask(url, client, "POST", _FORGET, refused=ForgetError, json=given)
    console = TerminalConsole()
    what = f"{kind} {done['name']} is forgotten{at}"
    attempts = f"{counted(done['attempts'], 'attempt')}, " if kind in ("rollout", "task") else ""
    edited = counted(done["edits"], "edited answer")
    _say(
        console,
        f"{what}: {attempts}{counted(done['feedback'], 'piece')} of feedback ({edited}), "
        f"{counted(done['rewards'], 'reward')} made of it, {counted(done['spans'], 'span')}",
    )
    if kind == "source" and done["rewards"]:
        _say(
            console,
            "where others had a part in a reward, it is made again of what they say, if that is among the newest "
            f"{READ:,} pieces; else it is missing",
        )
    for one in done["made_with"]:
        _say(console, one["sentence"])
    if kind in ("rollout", "task") and done["made_with"]:
        _say(console, "the recorded batches of these steps hold its tokens until retention deletes them")
    if quoted_by := done.get("quoted_by"):  # an older daemon says neither this nor ``still_in``
        option = option_of(endpoint, config_path)
        _say(
            console,
            f"versions of prompts that have its words, and stay: {', '.join(quoted_by)}; see `lightning-trainer "
            f"prompts show{option}`, and serve another where one of them is live, with `lightning-trainer prompts "
            f"use{option}`",
        )
    _say(console, "backups and files that `build` wrote before still have it; what clients deliver again is not stored")
    for sentence in done.get("still_in", ()):
        _say(console, sentence)


async def _erase(config: Config, kind: str, name: str) -> dict[str, Any]:
    async with store_at(recorded_place(config), config.store) as store:
        done = await store.erase(lambda connection: forget_and_say(connection, kind, name))
    return {**done, "still_in": still_in(config)}


def _say(console: TerminalConsole, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
