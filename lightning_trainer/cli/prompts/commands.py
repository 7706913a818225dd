"""``lightning-trainer prompts``: its commands and their options."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from lightning_trainer.cli.terminal.console import Endpoint, one_sentence

prompts = typer.Typer(no_args_is_help=True, help="List, compare, choose and improve prompts that agents get by name.")

_Configuration: TypeAlias = Annotated[
    Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
]
_Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@prompts.command("list")
def list_them(
    context: typer.Context, config: _Configuration = None, endpoint: Endpoint = None, as_json: _Json = False
) -> None:
    """List the prompts that programs have asked for, with the versions that are served."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.prompts.listing import list_prompts

        list_prompts(config, as_json=as_json, endpoint=named_endpoint_or_store(context, endpoint, config))


@prompts.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="NAME for all its versions, NAME@vN for the text of one.")],
    config: _Configuration = None,
    endpoint: Endpoint = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show what a version changes of its parent.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Show what each version earned in the newest live attempts, too.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Show a prompt's versions and what each earned, or the text of one."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.prompts.listing import show_prompt

        show_prompt(
            config,
            name,
            diff=diff,
            as_json=as_json,
            live=live,
            endpoint=named_endpoint_or_store(context, endpoint, config),
        )


@prompts.command()
def use(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="NAME@vN.")],
    config: _Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Serve a version to programs that ask for the prompt: at once where they run, with no restart."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.prompts.changing import use_version

        use_version(config, version, endpoint=named_endpoint_or_store(context, endpoint, config))


@prompts.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="NAME, or NAME@vN for the version that the text derives from.")],
    file: Annotated[Path, typer.Argument(help="The file with the text.")],
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
    config: _Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Add a text of your own as a version, which `use` then serves."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.prompts.changing import add_version

        add_version(config, name, file, reason, endpoint=named_endpoint_or_store(context, endpoint, config))


@prompts.command()
def optimize(
    context: typer.Context,
    names: Annotated[str, typer.Argument(metavar="NAME[,NAME...]", help="The prompts that may change.")],
    command: Annotated[
        list[str], typer.Argument(help="The program, after `--`; it reads its task from standard input.")
    ],
    tasks: Annotated[Path, typer.Option(help="File of tasks: one JSON object per line, or Parquet.")],
    attempts: Annotated[int, typer.Option(help="Most attempts that are made, without those at --held-out.", min=1)],
    validation: Annotated[
        Path | None, typer.Option(help="Tasks to compare candidates at; default: every second of --tasks.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Tasks for the end alone: what the program had against the best.")
    ] = None,
    use_best: Annotated[
        bool, typer.Option("--use", help="Serve the best if it is better at the held-out tasks beyond doubt (95 %).")
    ] = False,
    minibatch: Annotated[int, typer.Option(help="Tasks that one new text is made from.", min=1)] = 3,
    perfect: Annotated[float, typer.Option(help="The reward of an attempt that leaves nothing to learn.")] = 1.0,
    journal: Annotated[
        Path | None, typer.Option(help="File to go on from where the search was interrupted, or needs more --attempts.")
    ] = None,
    config: _Configuration = None,
    endpoint: Annotated[
        str | None,
        typer.Option(envvar="LIGHTNING_ENDPOINT", help="The daemon's URL; with --config the variable does not count."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent name for calls that the program does not name.")] = None,
    concurrency: Annotated[int, typer.Option(help="Attempts at once.", min=1)] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds after which an attempt is stopped.", min=0.1)] = 120.0,
    retries: Annotated[
        int, typer.Option(help="How often a failed attempt is made again; these count in no --attempts.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was found as JSON, and on standard error how it goes.")
    ] = False,
) -> None:
    """Look for better texts by trying them: prompts optimize NAME --tasks FILE --attempts N -- python agent.py."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint
        from lightning_trainer.cli.prompts.optimize import Search, optimize_prompts

        optimize_prompts(
            [name.strip() for name in names.split(",")],
            tuple(command),
            Search(tasks, attempts, validation, held_out, use_best, minibatch, perfect, seed, journal),
            config=config,
            endpoint=named_endpoint(context, endpoint, config),
            agent=agent,
            concurrency=concurrency,
            timeout_s=timeout,
            retries=retries,
            as_json=as_json,
        )
