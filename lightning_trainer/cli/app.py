"""The command line: commands that run agents, and those of `commands/`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer import __version__
from lightning_trainer.cli.commands import acting, machine, recorded
from lightning_trainer.cli.commands.store import store
from lightning_trainer.cli.environments.commands import environments, scenarios
from lightning_trainer.cli.prompts.commands import prompts
from lightning_trainer.cli.terminal.console import check_unix, one_sentence
from lightning_trainer.errors import EvaluationError, LightningError

_EXIT_NOTHING_EVALUATED = 1
_EXIT_USER_ERROR = 2
_EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
"""Folder of the quickstart, which a checkout has and an installed package does not."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
)


def _status_of_rollouts(error: LightningError) -> int:
    return _EXIT_NOTHING_EVALUATED if isinstance(error, EvaluationError) else _EXIT_USER_ERROR


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Watch agents through OpenTelemetry, train the ones you choose, serve the new weights while they run."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def run(context: typer.Context) -> None:
    """Run a program with every model call captured: run [--agent NAME] -- python agent.py; see run --help."""
    # This entry only lists `run` in the help: the entry point handles `run` before it imports this file.
    from lightning_trainer.cli.run import main

    main(context.args)


@app.command()
def rollouts(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(help="The program, after `--`; it reads its task from standard input.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="File of tasks: one JSON object per line, or Parquet.")] = None,
    environment: Annotated[
        str | None, typer.Option(help="The environment; without a program, our own agent plays it.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(help="Number of tasks of --environment: held-out ones for --evaluate, else for --record.", min=1),
    ] = 64,
    max_turns: Annotated[int, typer.Option(help="Maximum turns of our agent per attempt.", min=1)] = 32,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens per answer of our agent.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="Our agent's temperature in training.", min=0.0)] = 1.0,
    instructions: Annotated[str | None, typer.Option(help="Our agent's system message.")] = None,
    history: Annotated[
        int | None, typer.Option(help="Earlier turns shown to our agent's model; default: all.", min=0)
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Send the environment's pictures to our agent's model, which has to see.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help=r"Folder of the environments' interpreters; default: \[environments] folder.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy that answers, or POLICY@vN for a version of it, not to train; default: the only one in "
            "--config; optional with --evaluate and --record."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The configuration, for the daemon's address, token and policies.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Train until this many steps are done.", min=1)] = None,
    evaluate: Annotated[
        str | None, typer.Option(help="Instead of training, try each task once under this name.")
    ] = None,
    record: Annotated[
        int | None,
        typer.Option(help="Instead of training, make a dataset: this many attempts at each task.", min=1),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(envvar="LIGHTNING_ENDPOINT", help="The daemon's URL; with --config the variable does not count."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent name for calls that the program does not name.")] = None,
    concurrency: Annotated[int, typer.Option(help="Attempts at once.", min=1)] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds after which an attempt is stopped.", min=0.1)] = 120.0,
    retries: Annotated[int, typer.Option(help="How often a failed attempt is retried.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Seed for the order of the tasks.")] = 0,
    run: Annotated[
        str | None, typer.Option(help="Name of this run, the prefix of its group ids; default: generated.")
    ] = None,
    curriculum: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Prefer tasks with an uncertain outcome, estimated per value of FIELD."),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="With --evaluate: file from which an interrupted evaluation goes on.")
    ] = None,
) -> None:
    """Run a program, or an environment, over tasks in groups and train on it: rollouts [OPTIONS] -- python agent.py."""
    with one_sentence(_status_of_rollouts):
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint
        from lightning_trainer.cli.rollouts import Options
        from lightning_trainer.cli.rollouts import rollouts as run_them

        options = Options(
            command=tuple(command or ()),
            tasks=tasks,
            policy=policy,
            config=config,
            steps=steps,
            evaluate=evaluate,
            endpoint=named_endpoint(context, endpoint, config),
            agent=agent,
            concurrency=concurrency,
            timeout_s=timeout,
            retries=retries,
            seed=seed,
            run=run,
            curriculum=curriculum,
            record=record,
            journal=journal,
        )
        if environment is None:
            run_them(options)
        else:
            from lightning_trainer.cli.environments.rollouts import Play, play

            play(
                options,
                Play(environment, count, max_turns, max_tokens, temperature, instructions, history, images, folder),
            )


@app.command()
def quickstart(
    seed: Annotated[int, typer.Option(help="Seed of the tasks.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 26,
    heldout: Annotated[int, typer.Option(help="Number of held-out tasks, asked before and after.", min=2)] = 96,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/quickstart-seed-N.")] = None,
) -> None:
    """Watch a real agent learn: an embedded 135M model, a calculator, and everything real in between."""
    with one_sentence():
        check_unix("quickstart")
        if not (_EXAMPLE / "quickstart" / "run.py").is_file():
            raise LightningError(f"the quickstart runs from a checkout of the repository; {_EXAMPLE} is not there")
        sys.path.insert(0, str(_EXAMPLE))
        from quickstart.run import quickstart as run  # pyright: ignore[reportMissingImports]

        run(seed=seed, steps=steps, heldout=heldout, out=out)


for group in (machine, recorded, acting):
    app.add_typer(group.commands)
app.add_typer(environments, name="environments")
app.add_typer(scenarios, name="scenarios")
app.add_typer(prompts, name="prompts")
app.add_typer(store, name="store")
