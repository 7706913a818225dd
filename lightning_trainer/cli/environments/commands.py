"""``lightning-trainer environments`` and ``lightning-trainer scenarios``: their options."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from lightning_trainer.cli.terminal.one_sentence import one_sentence

environments = typer.Typer(no_args_is_help=True, help="List, install or try environments.")
scenarios = typer.Typer(no_args_is_help=True, help="Make tasks with checkable answers.")

_Configuration: TypeAlias = Annotated[
    Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
]
_Folder: TypeAlias = Annotated[
    Path | None, typer.Option(help=r"Of the interpreters; \[environments] folder when absent.")
]


@environments.command("list")
def list_them(config: _Configuration = None, folder: _Folder = None) -> None:
    """Show the environments that have a name, what each needs, and which are installed."""
    with one_sentence():
        from lightning_trainer.cli.environments.installed import list_environments

        list_environments(config, folder)


@environments.command("install")
def install(
    name: Annotated[str, typer.Argument(help="As `environments list` has it.")],
    packages: Annotated[list[str] | None, typer.Argument(help="More packages into the same interpreter.")] = None,
    config: _Configuration = None,
    folder: _Folder = None,
    python: Annotated[str | None, typer.Option(help="The interpreter to make it from; ours when absent.")] = None,
) -> None:
    """Make an interpreter of its own for an environment, with the packages that it needs."""
    with one_sentence():
        from lightning_trainer.cli.environments.installed import install_environment

        install_environment(name, tuple(packages or ()), config, folder, python)


@environments.command("try")
def try_one(
    environment: Annotated[str, typer.Argument(help="NAME, NAME:VARIANT?key=value, or path/to/file.py:Class.")],
    say: Annotated[list[str] | None, typer.Option(help="An action in text; several may be given.")] = None,
    call: Annotated[
        list[str] | None, typer.Option(help="An action that calls a tool: 'name {\"key\": 1}'; after those of --say.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the task.", min=0)] = 0,
    held_out: Annotated[bool, typer.Option("--held-out", help="A held-out task.")] = False,
    tasks: Annotated[Path | None, typer.Option(help="The first task of this file instead.")] = None,
    config: _Configuration = None,
    folder: _Folder = None,
) -> None:
    """Reset an environment, act, and show what it says, what it gives and how long it takes; no model is asked."""
    with one_sentence():
        from lightning_trainer.cli.environments.trying import Trial, try_environment

        try_environment(
            Trial(environment, tuple(say or ()), tuple(call or ()), seed, held_out, tasks), config=config, folder=folder
        )


@scenarios.command("mcp", context_settings={"allow_interspersed_args": False})
def scenarios_mcp(
    command: Annotated[list[str], typer.Argument(help="The server, after `--`: its command, or one URL.")],
    out: Annotated[Path, typer.Option(help="Folder that gets train.jsonl and held-out.jsonl.")] = Path("scenarios"),
    count: Annotated[int, typer.Option(help="Training tasks at most.", min=1)] = 200,
    held_out: Annotated[int, typer.Option(help="Held-out tasks at most.", min=0)] = 50,
    difficulty: Annotated[str, typer.Option(help="Calls in a chain: 1, or 1-3.")] = "1-3",
    seed: Annotated[int, typer.Option(help="Of what is called, and chosen.", min=0)] = 0,
    budget: Annotated[int, typer.Option(help="Calls that are made at most to find out what there is.", min=1)] = 300,
    tool: Annotated[
        list[str] | None, typer.Option(help="Call this one too, though it does not say that it only reads.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that the server has for each call.", min=0.1)] = 30.0,
) -> None:
    """Make tasks from an MCP server's tools alone: chains of calls, really executed, whose last value is the answer."""
    with one_sentence():
        from lightning_trainer.cli.environments.mcp_scenarios import Wish, make_mcp_scenarios

        make_mcp_scenarios(
            Wish(tuple(command), out, count, held_out, difficulty, seed, budget, tuple(tool or ()), timeout)
        )
