"""``lightning-trainer explain``: why a rollout was trained or not, read from the store, with or without a daemon."""

import os
import sqlite3
from pathlib import Path

from rich.console import Console

from lightning_trainer.config import Config, load_config
from lightning_trainer.errors import StoreError
from lightning_trainer.explain.explanation import Explanation, explain
from lightning_trainer.explain.gathering import Gathering
from lightning_trainer.explain.terminal import show, show_list
from lightning_trainer.store.rollouts import nearest_names, select_named, select_recent
from lightning_trainer.store.scan import read_only

_LISTED = 20
_EXPLAINED = 200


def explain_rollouts(
    rollout: str | None, *, last: bool, config: Path, state_dir: Path | None, html: Path | None
) -> None:
    """Print one explanation, the first lines of several, or, without a name, the newest rollouts.

    Raises:
        LightningError: the configuration or the store cannot be read, or there is no such rollout.
    """
    settings = load_config(config)
    store = (state_dir or settings.daemon.state_dir) / "lightning.sqlite"
    console = Console()
    with read_only(store) as connection:
        if rollout is None and not last and html is None:
            _list(connection, store, console)
            return
        named = _named(connection, store, rollout)
        gathering = Gathering(connection, settings.only_policy)
        if len(named) > 1 and html is not None:
            raise StoreError(
                f"{rollout!r} names {len(named)} rollouts, and one is drawn at a time: name it more exactly"
            )
        if len(named) > 1:
            _first_lines(named, gathering, console)
            return
        explanation = explain(gathering.cases(named[0]))
    show(explanation, console)
    if html is not None:
        _draw(explanation, settings, html)
        console.print(f"drawn in {html}", style="dim", highlight=False, soft_wrap=True)


def _named(connection: sqlite3.Connection, store: Path, rollout: str | None) -> list[str]:
    # Without a name it is the newest.
    found = select_named(connection, rollout) if rollout else [row.rollout_id for row in select_recent(connection, 1)]
    if found:
        return found
    if not rollout:
        raise StoreError(f"there is no rollout in the store {store}: none of its spans names one")
    nearest = nearest_names(connection, rollout)
    hint = f"the nearest are {', '.join(nearest)}" if nearest else "it has none; see `lightning-trainer agents`"
    raise StoreError(f"there is no rollout, attempt or task {rollout!r} in the store {store}: {hint}")


def _list(connection: sqlite3.Connection, store: Path, console: Console) -> None:
    rows = select_recent(connection, _LISTED)
    if not rows:
        console.print(f"there is no rollout in the store {store} yet", highlight=False, soft_wrap=True)
        return
    show_list(rows, console)
    console.print("explain one by its id, its task, their beginning, or a pattern; --last is the first", style="dim")


def _first_lines(named: list[str], gathering: Gathering, console: Console) -> None:
    for rollout_id in named[-_EXPLAINED:]:
        console.print(explain(gathering.cases(rollout_id)).headline, markup=False, highlight=False, soft_wrap=True)
    more = len(named) - _EXPLAINED
    if more > 0:
        console.print(f"and {more} older ones; name them more exactly", style="dim")


def _draw(explanation: Explanation, settings: Config, html: Path) -> None:
    from lightning_trainer.explain.page import render
    from lightning_trainer.explain.texts import texts_of

    html.parent.mkdir(parents=True, exist_ok=True)
    partial = html.with_name(f"{html.name}.{os.getpid()}.partial")
    partial.write_text(render(explanation, texts_of(settings.only_policy.model)), encoding="utf-8")
    partial.replace(html)
