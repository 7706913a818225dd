"""``lightning-trainer store check | backup | restore | repair | compact | migrate``, and what they print."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import place_of, reading
from lightning_trainer.store.postgres.upkeep.backup import back_up as back_up_postgres
from lightning_trainer.store.postgres.upkeep.backup import restore as restore_postgres
from lightning_trainer.store.postgres.upkeep.checking import check as check_postgres
from lightning_trainer.store.postgres.upkeep.copying import compact as compact_postgres
from lightning_trainer.store.postgres.upkeep.copying import copy_to_postgres
from lightning_trainer.store.records import StepState
from lightning_trainer.store.tables.steps import select_states
from lightning_trainer.store.tables.versions import select_live, select_rollbacks
from lightning_trainer.store.upkeep import check as checking
from lightning_trainer.store.upkeep.backup import back_up
from lightning_trainer.store.upkeep.compact import compact as compact_store
from lightning_trainer.store.upkeep.files import STORE
from lightning_trainer.store.upkeep.repair import repair as repair_store
from lightning_trainer.store.upkeep.restore import restore as restore_store
from lightning_trainer.versions.archive import version_folder
from lightning_trainer.versions.lineage import Lineage

_MIB = 2**20


def check(config_path: Path | None, *, quick: bool, as_json: bool) -> int:
    """Print what is damaged; works while a daemon runs.

    Returns:
        The exit status: 1 if something is damaged.

    Raises:
        LightningError: there is no store, or nothing in it can be read.
    """
    store = place_of(load_usual_config(config_path))
    with reading(store) as connection:
        found = list((check_postgres if store.url else checking.check)(connection, quick=quick))  # pyright: ignore
    damaged = sum(finding.number for finding in found)
    if as_json:
        print(json.dumps({"store": str(store), "findings": [asdict(finding) for finding in found]}, indent=2))
        return int(damaged > 0)
    table = Table("looked at", "how many", "damaged", "where", box=None, pad_edge=False, header_style="dim")
    for finding in found:
        looked_at = "" if finding.looked_at is None else f"{finding.looked_at:,}"
        more = f"\nand {finding.number - len(finding.damaged):,} more" if finding.number > len(finding.damaged) else ""
        where = escape("\n".join(finding.damaged)) + more
        table.add_row(finding.what, looked_at, f"{finding.number:,}" if finding.number else "none", where)
    console = TerminalConsole()
    console.print(table)
    if damaged:
        keeps = "`lightning-trainer store restore` goes back to a backup"
        if store.url is None:
            keeps = "`lightning-trainer store repair` keeps everything else"
        _say(console, f"{store} is damaged; {keeps}")
    return int(damaged > 0)


def backup(config_path: Path | None, folder: Path) -> None:
    """Copy the store, the newest checkpoints and the live weights that no checkpoint leads to into a new folder; works
    while a daemon runs.

    Raises:
        LightningError: the store cannot be copied.
    """
    config, console = load_usual_config(config_path), TerminalConsole()
    checkpoints, versions = _usable_checkpoints(config), _live_versions(config)
    url, journal = place_of(config).url, config.store.journal
    with _progress() as on_progress:
        if url is not None:
            made = back_up_postgres(url, folder, checkpoints, versions=versions, journal=journal)
        else:
            state_dir = config.daemon.state_dir
            made = back_up(state_dir, folder, checkpoints, versions=versions, journal=journal, on_progress=on_progress)
    of_policies = "".join(f", checkpoint {step} of {policy}" for policy, step in made.checkpoints.items())
    of_policies += "".join(f", weights of {policy}@v{int(path.name[1:])}" for policy, path in versions.items())
    _say(console, f"backed up {made.spans:,} spans ({made.bytes / _MIB:,.0f} MiB){of_policies} in {made.folder}")
    if config.store.journal is None:
        _say(console, "what is accepted from now on is not in it; [store] journal keeps that as well", style="dim")


def restore(config_path: Path | None, folder: Path) -> None:
    """Put a backup in the store's place, with what the journal has recorded since; no daemon may run.

    Raises:
        LightningError: the backup cannot be restored; everything is as it was, or the sentence says what is not.
    """
    config, console = load_usual_config(config_path), TerminalConsole()
    url, journal = place_of(config).url, config.store.journal
    state_dir, shared_dir = config.daemon.state_dir, config.shared_dir
    if url is not None:
        restored = restore_postgres(url, folder, shared_dir, state_dir=state_dir, journal=journal, limits=config.store)
    else:
        restored = restore_store(folder, state_dir, shared_dir=shared_dir, journal=journal, limits=config.store)
    at = f"{datetime.fromtimestamp(restored.at_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    _say(console, f"restored the backup of {at}: {restored.spans:,} spans, {restored.from_journal:,} from the journal")
    for problem in restored.problems:
        _say(console, problem, style="yellow")
    if restored.aside is not None:
        _say(console, f"what was there before is {restored.aside}")
    if restored.weights_aside:
        asides = " and ".join(map(str, restored.weights_aside))
        _say(console, f"checkpoints and weights that are not the backup's are in {asides} now")
    _say(
        console,
        "what you decided after the backup is not in it: before the next start, drop, forget, pause, resume and roll "
        "back again what you still want so; promote after it",
        style="yellow",
    )
    if config.store.journal is None:
        _say(
            console,
            "what was accepted after the backup is not there: clients had forgotten it, since it was stored. What "
            "still waits in their spools comes by itself",
            style="yellow",
        )


def repair(config_path: Path | None) -> None:
    """Rewrite the store with everything that can be read of it; no daemon may run.

    Raises:
        LightningError: nothing can be read, or a daemon runs.
    """
    config, console = load_usual_config(config_path), TerminalConsole()
    if config.store.url is not None:
        raise StoreError(
            "repair is for a SQLite file: what PostgreSQL cannot read, its own tools look at (pg_amcheck), and "
            "`lightning-trainer store restore` goes back to a backup"
        )
    newest = {
        policy: folder.steps()[-1] for policy, folder in _checkpoints(config.shared_dir).items() if folder.steps()
    }
    repaired = repair_store(config.daemon.state_dir, newest)
    shown = ("spans", "attempts", "steps")
    kept = ", ".join(f"{repaired.rows[table]:,} {table}" for table in shown)
    _say(console, f"kept {kept}")
    for table, places in repaired.lost.items():
        more = f" and {len(places) - 5:,} more places" if len(places) > 5 else ""
        _say(console, f"lost of {table}: {'; '.join(places[:5])}{more}", style="yellow")
    for sentence in repaired.sentences:
        _say(console, sentence, style="yellow")
    _say(console, f"the damaged file is {repaired.aside}: delete it when you do not need it any more")


def compact(config_path: Path | None) -> None:
    """Shrink the store to its contents; no daemon may run.

    Raises:
        LightningError: there is too little disk space for it, or a daemon runs.
    """
    config, console = load_usual_config(config_path), TerminalConsole()
    url = place_of(config).url
    done = compact_store(config.daemon.state_dir) if url is None else compact_postgres(url)
    _say(console, f"compacted: {done.before / _MIB:,.1f} MiB before, {done.after / _MIB:,.1f} MiB now")


def migrate(config_path: Path | None) -> None:
    """Copy the state folder's SQLite store into the PostgreSQL that the configuration names; no daemon may run.

    Raises:
        LightningError: there is no such URL or file, the database is not empty, or the copy differs.
    """
    config, console = load_usual_config(config_path), TerminalConsole()
    url = place_of(config).url
    if url is None:
        raise StoreError('there is no [store] url = "postgresql://..." in the configuration: it says where to copy to')
    with _progress() as on_progress:
        copied = copy_to_postgres(config.daemon.state_dir / STORE, url, on_progress=on_progress)
    shown = ("spans", "attempts", "steps", "versions")
    kept = ", ".join(f"{copied.rows[table]:,} {table}" for table in shown)
    _say(console, f"copied {sum(copied.rows.values()):,} rows to {copied.store} ({kept}); all were read back alike")
    state_dir, shared_dir = config.daemon.state_dir, config.shared_dir
    _say(console, f"{state_dir / STORE} stays as it is: delete it when you do not need it any more")
    if shared_dir != state_dir and any((state_dir / name).is_dir() for name in ("checkpoints", "versions")):
        _say(
            console,
            f"now copy the folders checkpoints and versions of {state_dir} to {shared_dir}, where training looks for "
            "them: without a checkpoint it repeats every step",
            style="yellow",
        )


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    with Progress(TextColumn("copying"), BarColumn(), console=TerminalConsole(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share: progress.update(task, completed=share)


def _usable_checkpoints(config: Config) -> dict[str, Path]:
    """Return, by policy, the newest checkpoint that its current weights descend from, not one that was rolled back."""
    found: dict[str, Path] = {}
    with reading(place_of(config), outdated=True) as connection:  # a store is backed up before it is upgraded
        for policy, folder in _checkpoints(config.shared_dir).items():
            newest = folder.latest(_lineage(connection, policy).path())
            if newest is not None:
                found[policy] = folder.path(newest)
    return found


def _live_versions(config: Config) -> dict[str, Path]:
    """Return, by policy, the weights of its live version if training has continued from a version that a guard or a
    canary held back: without them there is nothing to serve instead, and nothing to compare with."""
    found: dict[str, Path] = {}
    roots = (config.shared_dir / "versions").glob("*/")
    with reading(place_of(config), outdated=True) as connection:
        for root in sorted(roots):
            live = select_live(connection, root.name)
            if live is None or live.version == _lineage(connection, root.name).head:
                continue
            if (folder := version_folder(root, live.version)).is_dir():
                found[root.name] = folder
    return found


def _lineage(connection: Connection, policy: str) -> Lineage:
    states = select_states(connection, policy)
    trained = [step for step, state in states.items() if state is not StepState.SKIPPED]
    return Lineage(trained, select_rollbacks(connection, policy))


def _checkpoints(state_dir: Path) -> dict[str, CheckpointFolder]:
    root = state_dir / "checkpoints"
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    return {folder.name: CheckpointFolder(folder, keep=1) for folder in folders}


def _say(console: Console, sentence: str, style: str | None = None) -> None:
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)
