"""The command line: commands that run agents, and those of `commands/`."""

from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer import __version__
from lightning_trainer.cli.commands import acting, machine, recorded
from lightning_trainer.cli.commands.store import store
from lightning_trainer.cli.environments.commands import environments, scenarios
from lightning_trainer.cli.terminal.one_sentence import one_sentence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Watch agents through OpenTelemetry, train the ones you choose, serve the new weights while they run."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def run(context: typer.Context) -> None:
    """Run a program with every model call captured: run [--agent NAME] -- python agent.py; see run --help."""
    # The entry point comes here only to list it: it takes `run` before anything of this file is imported.
    from lightning_trainer.cli.run import main

    main(context.args)


@app.command()
def rollouts(
    command: Annotated[
        list[str] | None, typer.Argument(help="The program, after `--`: its standard input is the task.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="The tasks: one JSON object a line.")] = None,
    environment: Annotated[
        str | None, typer.Option(help="Where they are played, by an agent of ours where there is no program.")
    ] = None,
    count: Annotated[int, typer.Option(help="Held-out tasks of --environment --evaluate.", min=1)] = 64,
    max_turns: Annotated[int, typer.Option(help="Of our agent, in one attempt.", min=1)] = 32,
    max_tokens: Annotated[int, typer.Option(help="Of one answer of our agent.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="Of our agent, in training.", min=0.0)] = 1.0,
    instructions: Annotated[str | None, typer.Option(help="System message of our agent.")] = None,
    history: Annotated[
        int | None, typer.Option(help="Earlier turns that our agent's model is shown; all when absent.", min=0)
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="To train or evaluate; the only one of --config when absent; --evaluate needs none."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Says where the daemon is, its token and its policies.")] = None,
    steps: Annotated[int | None, typer.Option(help="Train until this many steps are done.", min=1)] = None,
    evaluate: Annotated[
        str | None, typer.Option(help="Instead: try each task once under this name; not trained.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(envvar="LIGHTNING_ENDPOINT", help="The daemon's URL.")] = None,
    agent: Annotated[str | None, typer.Option(help="Name for calls that nothing in the program names.")] = None,
    concurrency: Annotated[int, typer.Option(help="Programs at once.", min=1)] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds after which a program is killed.", min=0.1)] = 120.0,
    retries: Annotated[int, typer.Option(help="How often an attempt that failed is made again.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of the order of the tasks.")] = 0,
    run: Annotated[str | None, typer.Option(help="Name of this run, which its groups carry; made when absent.")] = None,
    curriculum: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Train on tasks whose outcome is uncertain, as told by others with the same FIELD."
        ),
    ] = None,
) -> None:
    """Run a program, or an environment, over tasks in groups and train on it: rollouts [OPTIONS] -- python agent.py."""
    with one_sentence():
        from lightning_trainer.cli.rollouts import Options
        from lightning_trainer.cli.rollouts import rollouts as run_them

        options = Options(
            command=tuple(command or ()),
            tasks=tasks,
            policy=policy,
            config=config,
            steps=steps,
            evaluate=evaluate,
            endpoint=endpoint,
            agent=agent,
            concurrency=concurrency,
            timeout_s=timeout,
            retries=retries,
            seed=seed,
            run=run,
            curriculum=curriculum,
        )
        if environment is None:
            run_them(options)
        else:
            from lightning_trainer.cli.environments.rollouts import Play, play

            play(options, Play(environment, count, max_turns, max_tokens, temperature, instructions, history))


@app.command()
def quickstart(
    seed: Annotated[int, typer.Option(help="Seed of the tasks.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 26,
    heldout: Annotated[int, typer.Option(help="Held-out tasks, before and after.", min=2)] = 96,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/quickstart-seed-N when absent.")] = None,
) -> None:
    """Watch a real agent learn: an embedded 135M model, a calculator, and everything real in between."""
    with one_sentence():
        from lightning_trainer.cli.quickstart.quickstart import quickstart as run

        run(seed=seed, steps=steps, heldout=heldout, out=out)


for group in (machine, recorded, acting):
    app.add_typer(group.commands)
app.add_typer(environments, name="environments")
app.add_typer(scenarios, name="scenarios")
app.add_typer(store, name="store")
