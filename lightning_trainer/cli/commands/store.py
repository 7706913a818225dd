"""Commands about the store."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer.cli.terminal.one_sentence import Configuration, one_sentence

store = typer.Typer(no_args_is_help=True, help="Check, back up, restore, repair, compact or move the store.")


@store.command("check")
def store_check(
    config: Configuration = None,
    quick: Annotated[bool, typer.Option("--quick", help="Not every index and checksum.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Look for damage, whether a daemon runs or not; exit status 1 where there is some."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import check as run

        sys.exit(run(config, quick=quick, as_json=as_json))


@store.command("backup")
def store_backup(
    folder: Annotated[Path, typer.Argument(help="To be made; gets the database and the newest checkpoints.")],
    config: Configuration = None,
) -> None:
    """Copy the store, whether a daemon runs or not."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import backup as run

        run(config, folder)


@store.command("restore")
def store_restore(
    folder: Annotated[Path, typer.Argument(help="That `store backup` made.")],
    config: Configuration = None,
) -> None:
    """Put a backup in the store's place, and what the journal has since; what was there is set aside."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import restore as run

        run(config, folder)


@store.command("repair")
def store_repair(config: Configuration = None) -> None:
    """Write a damaged store anew with everything that can be read; the damaged file is set aside."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import repair as run

        run(config)


@store.command("compact")
def store_compact(config: Configuration = None) -> None:
    """Make the store's file as small as what it holds; it takes as much free disk twice, and no running daemon."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import compact as run

        run(config)


@store.command("migrate")
def store_migrate(config: Configuration = None) -> None:
    r"""Copy the SQLite store to the empty PostgreSQL of \[store] url, and compare every row; no daemon may run."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import migrate as run

        run(config)
