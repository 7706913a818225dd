"""Commands about the store."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer.cli.terminal.console import Configuration, one_sentence

store = typer.Typer(no_args_is_help=True, help="Check, back up, restore, repair, compact or migrate the store.")


@store.command("check")
def store_check(
    config: Configuration = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip indexes and checksums.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check for damage, with or without a running daemon; exit status 1 if there is any."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import check as run

        sys.exit(run(config, quick=quick, as_json=as_json))


@store.command("backup")
def store_backup(
    folder: Annotated[Path, typer.Argument(help="New folder for the database and the newest checkpoints.")],
    config: Configuration = None,
) -> None:
    """Copy the store, with or without a running daemon."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import backup as run

        run(config, folder)


@store.command("restore")
def store_restore(
    folder: Annotated[Path, typer.Argument(help="A folder made by `store backup`.")],
    config: Configuration = None,
) -> None:
    """Replace the store with a backup plus the journal's later spans; the previous store is set aside."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import restore as run

        run(config, folder)


@store.command("repair")
def store_repair(config: Configuration = None) -> None:
    """Rewrite a damaged store with everything readable; the damaged file is set aside."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import repair as run

        run(config)


@store.command("compact")
def store_compact(config: Configuration = None) -> None:
    """Shrink the store's file to its contents; needs twice that in free disk space, and no running daemon."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import compact as run

        run(config)


@store.command("migrate")
def store_migrate(config: Configuration = None) -> None:
    r"""Copy the SQLite store to the empty PostgreSQL of \[store] url, and compare every row; no daemon may run."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import migrate as run

        run(config)
