"""``lightning-trainer environments`` and ``lightning-trainer scenarios``: their options."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from lightning_trainer.cli.terminal.console import one_sentence

environments = typer.Typer(no_args_is_help=True, help="List, install or try environments.")
scenarios = typer.Typer(no_args_is_help=True, help="Generate tasks with checkable answers.")

_Configuration: TypeAlias = Annotated[
    Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
]
_Folder: TypeAlias = Annotated[
    Path | None, typer.Option(help=r"Folder of the interpreters; default: \[environments] folder.")
]


@environments.command("list")
def list_them(config: _Configuration = None, folder: _Folder = None) -> None:
    """List the named environments, what each needs, and which are installed."""
    with one_sentence():
        from lightning_trainer.cli.environments.installed import list_environments

        list_environments(config, folder)


@environments.command("install")
def install(
    name: Annotated[str, typer.Argument(help="A name from `environments list`.")],
    packages: Annotated[list[str] | None, typer.Argument(help="More packages for the same interpreter.")] = None,
    config: _Configuration = None,
    folder: _Folder = None,
    python: Annotated[
        str | None, typer.Option(help="The interpreter to create it from, anew if it is another; default: this one.")
    ] = None,
) -> None:
    """Create a separate interpreter for an environment, with the packages that it needs."""
    with one_sentence():
        from lightning_trainer.cli.environments.installed import install_environment

        install_environment(name, tuple(packages or ()), config, folder, python)


@environments.command("try")
def try_one(
    environment: Annotated[
        str,
        typer.Argument(
            help="NAME:VARIANT?key=value, path/to/file.py:Class or package.module:Class (or a reward function)."
        ),
    ],
    say: Annotated[list[str] | None, typer.Option(help="A text action; repeatable.")] = None,
    call: Annotated[
        list[str] | None, typer.Option(help="A tool call: 'name {\"key\": 1}'; runs after the --say actions.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the task.", min=0)] = 0,
    held_out: Annotated[bool, typer.Option("--held-out", help="Use a held-out task.")] = False,
    tasks: Annotated[Path | None, typer.Option(help="Use the first task of this file instead.")] = None,
    config: _Configuration = None,
    folder: _Folder = None,
) -> None:
    """Reset an environment, act, and show its observations, rewards and timing; without a model."""
    with one_sentence():
        from lightning_trainer.cli.environments.trying import Trial, try_environment

        try_environment(
            Trial(environment, tuple(say or ()), tuple(call or ()), seed, held_out, tasks), config=config, folder=folder
        )


@scenarios.command("mcp", context_settings={"allow_interspersed_args": False})
def scenarios_mcp(
    command: Annotated[list[str], typer.Argument(help="The server, after `--`: its command, or a URL.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("scenarios"),
    count: Annotated[int, typer.Option(help="Maximum number of training tasks.", min=1)] = 200,
    held_out: Annotated[int, typer.Option(help="Maximum number of held-out tasks.", min=0)] = 50,
    demonstrations: Annotated[
        int, typer.Option(help="Training tasks whose calls are also written as demonstrations, to imitate.", min=0)
    ] = 0,
    difficulty: Annotated[str, typer.Option(help="Calls per chain: 1, or 1-3.")] = "1-3",
    seed: Annotated[int, typer.Option(help="Seed for exploring and choosing.", min=0)] = 0,
    budget: Annotated[int, typer.Option(help="Maximum number of exploring calls.", min=1)] = 300,
    tool: Annotated[
        list[str] | None, typer.Option(help="Also call this tool, which is not declared read-only; repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds allowed for each call.", min=0.1)] = 30.0,
) -> None:
    """Generate tasks from an MCP server's tools: executed chains of calls whose last value is the answer."""
    with one_sentence():
        from lightning_trainer.cli.environments.mcp_scenarios import ScenarioOptions, make_mcp_scenarios

        make_mcp_scenarios(
            ScenarioOptions(
                command=tuple(command),
                out=out,
                count=count,
                held_out=held_out,
                demonstrations=demonstrations,
                difficulty=difficulty,
                seed=seed,
                budget=budget,
                tools=tuple(tool or ()),
                timeout_s=timeout,
            )
        )
