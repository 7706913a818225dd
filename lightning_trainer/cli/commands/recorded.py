"""Commands about what was recorded: which agents, why a rollout was trained or not, datasets, judgments."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer.cli.terminal.console import Configuration, Endpoint, one_of, one_sentence
from lightning_trainer.errors import ConfigError

commands = typer.Typer()


@commands.command()
def agents(
    context: typer.Context,
    state_dir: Annotated[
        Path | None, typer.Option(help="The daemon's state folder, if there is no configuration.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration, for the policies that claim agents.")] = None,
    newest: Annotated[
        int | None, typer.Option(help="Read only this many of the newest spans; default: 20,000.", min=1)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Read all spans, however long that takes.")] = False,
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show every agent that was seen: calls, tokens, tools, the policy that claims it, and what was not captured."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.recorded.agents import agents as run
        from lightning_trainer.cli.recorded.agents import agents_there

        if (at := named_endpoint_or_store(context, endpoint, config or state_dir)) is not None:
            if everything or newest is not None:
                raise ConfigError("a daemon counts its newest spans: leave out --newest and --all, or --endpoint")
            agents_there(at, config, as_json=as_json)
            return
        run(state_dir=state_dir, config=config, as_json=as_json, newest=None if everything else newest or 20_000)


@commands.command()
def build(
    out: Annotated[Path, typer.Option(help="The file to write: *.parquet, *.jsonl, or any name with --format.")],
    spans: Annotated[
        list[Path] | None,
        typer.Option(
            help="OTLP JSON lines (or .gz), or a daemon's state folder; repeatable; default: the configuration's."
        ),
    ] = None,
    calls: Annotated[
        list[Path] | None, typer.Option(help="Instead of spans: JSON lines of calls, as for build_samples.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The policy's name, if there are several.")] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Only this agent of the policy's: a name or a pattern; repeatable."),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(help="The reward in place of the policy's: an evaluation's NAME, or NAME=WEIGHT; repeatable."),
    ] = None,
    purpose: Annotated[
        str,
        typer.Option("--for", help="rl: samples; sft: demonstrations; dpo: preference pairs.", metavar="rl|sft|dpo"),
    ] = "rl",
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Output format; default: by the file's name.",
            metavar="parquet|jsonl|trl|verl|messages|openai",
        ),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="sft, dpo: only calls with known token ids.")] = False,
    advantages: Annotated[
        bool, typer.Option("--advantages", help="rl: also compute advantages (imports verl).")
    ] = False,
    min_reward: Annotated[float | None, typer.Option(help="sft: minimum reward of a demonstration.")] = None,
    again: Annotated[
        bool,
        typer.Option("--retokenize", "--retokenise", help="Reconstruct and verify the token ids of text-only calls."),
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="A vLLM server (http://.../v1) that scores reconstructed ids.")
    ] = None,
    engine_model: Annotated[str | None, typer.Option(help="The model that --engine serves.")] = None,
) -> None:
    """Build samples, demonstrations or preference pairs from recorded spans, without a daemon; prints the ledger."""
    with one_sentence():
        from lightning_trainer.cli.recorded.build import Options
        from lightning_trainer.cli.recorded.build import build as run
        from lightning_trainer.dataset.forms import Form, Purpose

        options = Options(
            config=config,
            out=out,
            policy=policy,
            spans=tuple(spans or ()),
            calls=tuple(calls or ()),
            agents=tuple(agent or ()),
            rewards=tuple(reward or ()),
            purpose=one_of(Purpose, "--for", purpose),
            form=None if form is None else one_of(Form, "--format", form),
            tokens=tokens,
            advantages=advantages,
            min_reward=min_reward,
            retokenize=again,
            engine=engine,
            engine_model=engine_model,
        )
        sys.exit(run(options))


@commands.command()
def explain(
    context: typer.Context,
    rollout: Annotated[
        str | None, typer.Argument(help="Id of a rollout, attempt or task, a prefix, or a pattern; without one: list.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Explain the newest rollout.")] = False,
    spans: Annotated[
        list[Path] | None, typer.Option(help="Read OTLP JSON lines (or .gz) instead of a store; repeatable.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; default: lightning.toml, if it exists.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="The daemon's state folder, if not the configuration's.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the token tree to this HTML file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    policy: Annotated[
        str | None,
        typer.Option(help="Explain for this one of several policies; default: whose step took it."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only rollouts in which this agent (or pattern) took part.")] = None,
    endpoint: Endpoint = None,
) -> None:
    """Explain why a rollout was trained or not: the cause first, then its calls, token tree and ledger."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.recorded.explain import Options, explain_rollouts
        from lightning_trainer.explain.answer import Question

        read_here = config or state_dir or (spans[0] if spans else None)
        explain_rollouts(
            Options(
                config=config,
                question=Question(rollout, last or (html is not None and rollout is None), policy, agent),
                spans=tuple(spans or ()),
                state_dir=state_dir,
                endpoint=named_endpoint_or_store(context, endpoint, read_here),
                html=html,
                as_json=as_json,
            )
        )


@commands.command()
def judge(
    context: typer.Context,
    by: Annotated[str, typer.Option("--judge", help=r"Name of a [\[judge]] of the configuration.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Ids of rollouts, attempts, tasks or groups, or patterns of them.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Attempts that ended since then: 30m, 2h, 7d, or a date; without names, all of them."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask no model; show the questions that would be asked, and their size.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also judge attempts that have this judge's reward.")] = False,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="With --again: present a group's attempts in another order.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Ask no model; report how reliable the judge is.")] = False,
    config: Configuration = None,
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Judge recorded attempts of any age that lack the judge's reward."""
    with one_sentence():
        from lightning_trainer.cli.daemon.named_daemon import named_endpoint_or_store
        from lightning_trainer.cli.judge.judge import Options
        from lightning_trainer.cli.judge.judge import judge as run

        run(
            Options(
                names=tuple(names or ()),
                judge=by,
                config=config,
                endpoint=named_endpoint_or_store(context, endpoint, config),
                since=since,
                again=again,
                dry_run=dry_run,
                report=report,
                shuffle=shuffle,
                as_json=as_json,
            )
        )
