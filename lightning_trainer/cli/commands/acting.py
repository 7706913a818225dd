"""Commands that change what is served, trained or kept; with the daemon running or stopped."""

from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer.cli.terminal.console import Configuration, Endpoint, one_of, one_sentence

commands = typer.Typer()


@commands.command()
def versions(
    context: typer.Context,
    policy: Annotated[str | None, typer.Option(help="The policy, if there are several.")] = None,
    limit: Annotated[int, typer.Option(help="Show this many of the newest.", min=1)] = 100,
    before: Annotated[int | None, typer.Option(help="Show versions before this one.", min=1)] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List a policy's versions: parent, reward, held-out score, and whether each is served, stored or gone."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.versions import versions as run

        at = named_endpoint_or_store(context, endpoint, config)
        run(config, policy, as_json=as_json, limit=limit, before=before, endpoint=at)


@commands.command()
def export(
    out: Annotated[Path, typer.Option(help="A folder that is not there yet.")],
    version: Annotated[
        str | None, typer.Argument(help="12, v12, POLICY@v12, or best (by held-out score); default: the served one.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add a LoRA adapter to its model's weights.")] = False,
    policy: Annotated[str | None, typer.Option(help="The policy, if there are several.")] = None,
    config: Annotated[Path, typer.Option(help="The configuration file.")] = Path("lightning.toml"),
) -> None:
    """Write a version's weights to a folder that transformers, vLLM and PEFT load; with or without a daemon."""
    with one_sentence():
        from lightning_trainer.cli.export import export as run

        run(config, policy, version, out=out, merge=merge)


@commands.command()
def rollback(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="12, v12, POLICY@v12, or best (by held-out score).")],
    policy: Annotated[str | None, typer.Option(help="The policy, if there are several.")] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Serve an earlier version again and train on from it; works with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.daemon.rollback import rollback as run

        run(config, policy, version, endpoint=named_endpoint_or_store(context, endpoint, config))


@commands.command()
def promote(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="12, v12, POLICY@v12, or best (by held-out score).")],
    policy: Annotated[str | None, typer.Option(help="The policy, if there are several.")] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Serve a version that a guard, its canary or the probe held back, once trainer and engine agree on it."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.daemon.rollback import promote as run

        run(config, policy, version, endpoint=named_endpoint_or_store(context, endpoint, config))


@commands.command()
def drop(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Id of a rollout, attempt or group; or a step: 12, or POLICY@12.")],
    kind: Annotated[
        str | None, typer.Option(help="What the name refers to, if ambiguous.", metavar="rollout|group|step")
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason, shown by `explain`.")] = "someone dropped it",
    policy: Annotated[str | None, typer.Option(help="The step's policy, if there are several.")] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Take a rollout, a group or a recorded step out of training; with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.drop import drop as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.store.worklist.drops import Kind

        what = None if kind is None else one_of(Kind, "--kind", kind)
        at = named_endpoint_or_store(context, endpoint, config)
        run(config, name, kind=what, policy=policy, reason=reason, endpoint=at)


@commands.command()
def pause(
    context: typer.Context,
    policy: Annotated[str | None, typer.Option(help="The policy, if there are several.")] = None,
    reason: Annotated[str, typer.Option(help="The reason, shown by `status` and the dashboard.")] = "someone paused it",
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Pause training after the current step, across restarts, until `resume`; serving and capture continue."""
    with one_sentence():
        from lightning_trainer.cli.daemon.acting import pause as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store

        run(config, policy, reason, endpoint=named_endpoint_or_store(context, endpoint, config))


@commands.command()
def resume(
    context: typer.Context,
    policy: Annotated[str | None, typer.Option(help="The policy, if there are several.")] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Resume training after `pause`; with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.acting import resume as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store

        run(config, policy, endpoint=named_endpoint_or_store(context, endpoint, config))


@commands.command()
def label(
    context: typer.Context,
    rollout: Annotated[str, typer.Argument(help="Id of a rollout.")],
    reward: Annotated[float | None, typer.Option(help="The reward; the newest of a name counts.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the reward; default: the only one of the policies.")] = None,
    note: Annotated[str | None, typer.Option(help="A note, such as the reason.")] = None,
    attempt: Annotated[str | None, typer.Option(help="Id of an attempt; default: the rollout's last.")] = None,
    by: Annotated[str | None, typer.Option(help="Who gives it.")] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Give a rollout a reward or a note by hand; with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.acting import label_rollout as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store

        at = named_endpoint_or_store(context, endpoint, config)
        run(config, rollout, reward=reward, name=name, note=note, attempt=attempt, by=by, endpoint=at)


@commands.command()
def ui(
    state_dir: Annotated[
        Path | None, typer.Option(help="The daemon's state folder, if there is no configuration.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port; 0 picks a free one.", min=0, max=65535)] = 8322,
    beside: Annotated[
        list[Path] | None, typer.Option(help="State folder of another run, to overlay its curves; repeatable.")
    ] = None,
    config: Configuration = None,
) -> None:
    """Show a stopped run in the browser, read-only; for a running daemon, print its dashboard's address."""
    with one_sentence():
        from lightning_trainer.cli.daemon.ui import ui as run

        run(config, state_dir, port, beside or ())


@commands.command()
def feedback(
    context: typer.Context,
    config: Configuration = None,
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show feedback on answers: how much counts, how much waits, and how far each source is trusted."""
    with one_sentence():
        from lightning_trainer.cli.daemon.feedback import feedback as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store

        run(config, as_json=as_json, endpoint=named_endpoint_or_store(context, endpoint, config))


@commands.command()
def forget(
    context: typer.Context,
    source: Annotated[str | None, typer.Option(help="Erase all feedback of this source.")] = None,
    rollout: Annotated[str | None, typer.Option(help="Erase everything of this rollout or attempt.")] = None,
    task: Annotated[str | None, typer.Option(help="Erase everything of all rollouts of this task.")] = None,
    trace: Annotated[str | None, typer.Option(help="Erase this trace, if it is part of no rollout.")] = None,
    response: Annotated[
        str | None, typer.Option(help="Erase the call with this response id, if it is part of no rollout.")
    ] = None,
    config: Configuration = None,
    endpoint: Endpoint = None,
) -> None:
    """Erase a source's feedback, a rollout or all of a task, or a trace or call outside of rollouts, and list the
    versions trained with it; with or without a daemon."""
    with one_sentence():
        from lightning_trainer.cli.daemon.feedback import forget as run
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store

        run(
            config,
            endpoint=named_endpoint_or_store(context, endpoint, config),
            source=source,
            rollout=rollout,
            task=task,
            trace=trace,
            response=response,
        )
