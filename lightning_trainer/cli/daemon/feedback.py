"""``lightning-trainer feedback`` and ``forget``: who says what and is believed how far, and taking it out again."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
from rich.markup import escape
from rich.table import Table

from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.api.feedback import forget_and_say
from lightning_trainer.errors import ForgetError, StoreError
from lightning_trainer.explain.finding import counted
from lightning_trainer.rollouts.daemon_client import refusal
from lightning_trainer.samples.feedback.review import feedback_report
from lightning_trainer.store.places import place_of, reading, recorded_place, store_at
from lightning_trainer.store.tables.feedback import READ
from lightning_trainer.store.tables.rollouts import select_rated_tasks
from lightning_trainer.store.upkeep.files import STORE, set_aside_before
from lightning_trainer.store.worklist.settling import look

_SHOWN = 30


def feedback(config_path: Path | None, *, as_json: bool) -> None:
    """Print what there is, from the store itself, with or without a daemon.

    Raises:
        LightningError: the configuration or the store cannot be read.
    """
    config = load_usual_config(config_path)
    with reading(place_of(config)) as connection:
        report = feedback_report(look(connection, config.feedback, time.time_ns()), config.feedback)
        tasks = select_rated_tasks(connection)
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
    if tasks:
        pieces = counted(sum(number for _, number in tasks), "piece")
        _say(
            console,
            f"{pieces} of feedback found no rollout, because a task is named in its place ({tasks[0][0]!r}, say): a "
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


def forget(config_path: Path | None, **named: str | None) -> None:
    """Erase what a source said, or everything of a rollout, of a task, or of a trace or a response outside of rollouts,
    and say which versions were trained with it.

    Args:
        named: ``source``, ``rollout``, ``task``, ``trace`` or ``response``, one of them.

    Raises:
        LightningError: nothing of that name is stored, or the daemon failed on it.
    """
    given = {kind: name for kind, name in named.items() if name is not None}
    if len(given) != 1:
        raise ForgetError(
            "name what to forget: --source NAME, --rollout ID, --task NAME, --trace ID or --response ID, one of them"
        )
    ((kind, name),) = given.items()
    config = load_usual_config(config_path)
    url = running_daemon(config)
    done = asyncio.run(_erase(config, kind, name)) if url is None else _ask(url, config, given)
    console = TerminalConsole()
    attempts = f"{counted(done['attempts'], 'attempt')}, " if kind in ("rollout", "task") else ""
    edited = counted(done["edits"], "edited answer")
    _say(
        console,
        f"{kind} {done['name']} is forgotten: {attempts}{counted(done['feedback'], 'piece')} of feedback ({edited}), "
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
    if quoted_by := done.get("quoted_by"):  # an older daemon does not say
        _say(
            console,
            f"versions of prompts that have its words, and stay: {', '.join(quoted_by)}; see `lightning-trainer "
            "prompts show`, and serve another where one of them is live, with `lightning-trainer prompts use`",
        )
    _say(console, "backups and files that `build` wrote before still have it; what clients deliver again is not stored")
    for aside in set_aside_before(config.daemon.state_dir / STORE):
        _say(console, f"{aside} was set aside and may still have it: delete it when you do not need it any more")
    if (journal := config.store.journal) is not None:
        each = "" if config.store.url is None else ", as does every other daemon's,"
        until = "until `lightning-trainer store backup` is run two minutes after the daemon's next start, or later"
        _say(console, f"the journal {journal} still has it{each} {until}")


async def _erase(config: Config, kind: str, name: str) -> dict[str, Any]:
    async with store_at(recorded_place(config), config.store) as store:
        return await store.erase(lambda connection: forget_and_say(connection, kind, name))


def _ask(url: str, config: Config, body: dict[str, Any]) -> dict[str, Any]:
    try:
        with daemon_client(url, config, timeout_s=60.0) as client:
            answer = client.post("/lightning/forget", json=body)
        if answer.status_code == 404:
            raise ForgetError(answer.json()["error"]["message"])
        if not answer.is_success:
            raise ForgetError(refusal(url, answer.status_code, answer.content))
        return answer.json()
    except (httpx.HTTPError, KeyError, ValueError) as error:
        if isinstance(error, ForgetError):
            raise
        raise StoreError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error


def _say(console: TerminalConsole, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
