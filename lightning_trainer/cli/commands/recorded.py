"""Commands about what was recorded: who was seen, why it was trained or not, files and judgments of it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_trainer.cli.terminal.one_sentence import Configuration, one_of, one_sentence

commands = typer.Typer()


@commands.command()
def agents(
    state_dir: Annotated[
        Path | None, typer.Option(help="The daemon's folder, where no configuration names it.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration: it says which policy claims whom.")] = None,
    newest: Annotated[int, typer.Option(help="Only of the newest so many spans.", min=1)] = 20_000,
    everything: Annotated[bool, typer.Option("--all", help="Of all spans, however long that takes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show every agent that was seen: calls, tokens, tools, who claims it, and what was not captured."""
    with one_sentence():
        from lightning_trainer.cli.recorded.agents import agents as run

        run(state_dir=state_dir, config=config, as_json=as_json, newest=None if everything else newest)


@commands.command()
def build(
    out: Annotated[Path, typer.Option(help="The file to write: *.parquet, *.jsonl, or any name with --format.")],
    spans: Annotated[
        list[Path] | None,
        typer.Option(help="OTLP JSON lines (.gz too), or a daemon's folder; the configuration's when absent."),
    ] = None,
    calls: Annotated[
        list[Path] | None, typer.Option(help="Instead of spans: JSON lines of calls, as build_samples takes them.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Its name, where there are several.")] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Of the policy's agents only these: names or patterns; several may be given."),
    ] = None,
    purpose: Annotated[
        str,
        typer.Option("--for", help="rl: samples; sft: demonstrations; dpo: preference pairs.", metavar="rl|sft|dpo"),
    ] = "rl",
    form: Annotated[
        str | None, typer.Option("--format", help="By the file's name when absent.", metavar="parquet|jsonl|trl|verl")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="sft, dpo: only calls whose ids are known.")] = False,
    advantages: Annotated[bool, typer.Option("--advantages", help="rl: work them out too (imports verl).")] = False,
    min_reward: Annotated[float | None, typer.Option(help="sft: the least reward of a demonstration.")] = None,
    again: Annotated[
        bool, typer.Option("--retokenize", "--retokenise", help="Make ids of text-only calls again, and verify them.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="Let this vLLM server (http://.../v1) score the ids made again.")
    ] = None,
    engine_model: Annotated[str | None, typer.Option(help="The model that it serves.")] = None,
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
    rollout: Annotated[
        str | None, typer.Argument(help="Id of a rollout, attempt or task, its beginning, or a pattern; none: list.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest rollout.")] = False,
    spans: Annotated[
        list[Path] | None, typer.Option(help="Not a store, but OTLP JSON lines (or .gz); repeatable.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="The daemon's folder, where it is another one.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also draw the tree, with its tokens, into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    policy: Annotated[str | None, typer.Option(help="The policy, where there are several.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only rollouts in which this agent (or pattern) spoke.")] = None,
) -> None:
    """Say why a rollout was trained or not: the cause first, then its calls, token tree and ledger."""
    with one_sentence():
        from lightning_trainer.cli.recorded.explain import Options, explain_rollouts

        explain_rollouts(
            Options(
                config=config,
                rollout=rollout,
                last=last,
                spans=tuple(spans or ()),
                state_dir=state_dir,
                html=html,
                as_json=as_json,
                policy=policy,
                agent=agent,
            )
        )


@commands.command()
def judge(
    by: Annotated[str, typer.Option("--judge", help=r"Name of a [\[judge]] of the configuration.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Ids of rollouts, attempts, tasks or groups, or patterns of them.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only attempts that ended since then: 30m, 2h, 7d, or a date; alone: all of them."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask nobody; say what would be asked, and how much.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also judge what has this judge's reward already.")] = False,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="With --again: tell attempts of a group in another order.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Ask nobody; say how far the judge can be believed.")
    ] = False,
    config: Configuration = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Have recorded attempts judged, of any age: those that lack the judge's reward get it."""
    with one_sentence():
        from lightning_trainer.cli.judge.judge import Options
        from lightning_trainer.cli.judge.judge import judge as run

        run(
            Options(
                names=tuple(names or ()),
                judge=by,
                config=config,
                since=since,
                again=again,
                dry_run=dry_run,
                report=report,
                shuffle=shuffle,
                as_json=as_json,
            )
        )
