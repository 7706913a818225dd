"""Commands about this machine and a running daemon."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer.cli.terminal.console import Endpoint, check_unix, one_sentence

commands = typer.Typer()


@commands.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more details.")] = False,
) -> None:
    """Run the daemon: gateway, ingest, store, trainer and engine; without a policy it only records. Ctrl-C stops it."""
    with one_sentence():
        check_unix("serve")
    from lightning_trainer.cli.daemon.serve import exit_status

    with one_sentence(exit_status):
        from lightning_trainer.cli.daemon.serve import serve as run

        run(config, verbose=verbose)


@commands.command()
def plan(
    model: Annotated[list[str], typer.Option(help="A Hugging Face id, a folder, or a config.json; repeatable.")],
    hardware: Annotated[
        list[str],
        typer.Option(help="GPUs x memory: 1x80GB, 8x80GB; with nodes: 2x8x80GB; auto: this machine."),
    ],
    lora_rank: Annotated[int, typer.Option(help="Rank of the LoRA adapter to plan.", min=1, max=512)] = 16,
    max_model_len: Annotated[int, typer.Option(help="Length of the longest sequence, in tokens.", min=16)] = 4096,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Print a Markdown table.")] = False,
) -> None:
    """Show what a model needs on some hardware, and which settings fit, from its config.json alone."""
    with one_sentence():
        from lightning_trainer.cli.plan import plan as show

        sys.exit(
            show(model, hardware, lora_rank=lora_rank, max_model_len=max_model_len, as_json=as_json, as_table=table)
        )


@commands.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option(help="The configuration to check for; default: lightning.toml, if it exists.")
    ] = None,
) -> None:
    """Check interpreter, packages, cores, memory, ports and model; every failure says how to fix it."""
    with one_sentence():
        from lightning_trainer.cli.doctor import doctor as run

        sys.exit(run(config))


@commands.command()
def status(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
    ] = None,
    endpoint: Endpoint = None,
    policy: Annotated[str | None, typer.Option(help="Show only this policy.")] = None,
    watch: Annotated[float | None, typer.Option(help="Refresh every so many seconds.", min=0.2)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON; with --watch, a line each time.")
    ] = False,
) -> None:
    """Show what the running daemon is doing: each policy's phase, served version, newest steps and warnings."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.daemon.status import status as run

        at = named_endpoint_or_store(context, endpoint, config)
        run(config, policy, as_json=as_json, watch_s=watch, endpoint=at)


@commands.command()
def health(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
    ] = None,
    endpoint: Endpoint = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Also check that every engine and training loop works.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.1)] = 10.0,
) -> None:
    """Check whether the daemon answers: exit status 0, else 1 with the reason; for container and supervisor probes."""
    with one_sentence():
        from lightning_trainer.cli.daemon.health import health as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store

        at = named_endpoint_or_store(context, endpoint, config)
        sys.exit(run(config, ready=ready, timeout_s=timeout, endpoint=at))


@commands.command()
def token(
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
    ] = None,
) -> None:
    """Print the daemon's token, for curl and other languages: OPENAI_API_KEY=$(lightning-trainer token)."""
    with one_sentence():
        from lightning_trainer.cli.daemon.running_daemon import token as run

        run(config)
