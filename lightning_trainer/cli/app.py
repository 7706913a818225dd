"""Commands and their options; each command's work is in a module of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lightning_trainer import __version__
from lightning_trainer.errors import LightningError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
)

_EXIT_USER_ERROR = 2


@contextmanager
def _one_sentence() -> Iterator[None]:
    """A mistake of the user's is one sentence on stderr, not a traceback."""
    try:
        yield
    except LightningError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {error}", markup=True, highlight=False)
        sys.exit(_EXIT_USER_ERROR)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Watch agents through OpenTelemetry, train the ones you choose, serve the new weights while they run."""


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="The configuration file.")] = Path("lightning.toml"),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the daemon: gateway, ingest, store, trainer and engine. Ctrl-C stops all of it."""
    with _one_sentence():
        from lightning_trainer.cli.serve import serve as run

        run(config, verbose=verbose)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def run(context: typer.Context) -> None:
    """Run a program with every model call captured: run [--agent NAME] -- python agent.py; see run --help."""
    # The entry point comes here only to list it: it takes `run` before anything of this file is imported.
    from lightning_trainer.cli.run import main

    main(context.args)


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Option(help="Also check what this configuration needs.")] = None,
) -> None:
    """Check interpreter, packages, cores, memory, ports and model; every failure says how to mend it."""
    with _one_sentence():
        from lightning_trainer.cli.doctor import doctor as run

        sys.exit(run(config))


@app.command()
def agents(
    state_dir: Annotated[
        Path | None, typer.Option(help="The daemon's folder, where no configuration names it.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration: it says which policy claims whom.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show every agent that was seen: calls, tokens, tools, who claims it, and what was not captured."""
    with _one_sentence():
        from lightning_trainer.cli.agents import agents as run

        run(state_dir=state_dir, config=config, as_json=as_json)


@app.command()
def quickstart(
    seed: Annotated[int, typer.Option(help="Seed of the tasks.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 26,
    heldout: Annotated[int, typer.Option(help="Held-out tasks, before and after.", min=2)] = 96,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/quickstart-seed-N when absent.")] = None,
) -> None:
    """Watch a real agent learn: an embedded 135M model, a calculator, and everything real in between."""
    with _one_sentence():
        from lightning_trainer.cli.quickstart import quickstart as run

        run(seed=seed, steps=steps, heldout=heldout, out=out)
