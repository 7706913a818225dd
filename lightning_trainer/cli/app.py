"""Commands and their options; each command's work is in a module of its own."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from lightning_trainer import __version__
from lightning_trainer.cli.environments.commands import environments, scenarios
from lightning_trainer.cli.terminal.one_sentence import one_sentence
from lightning_trainer.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
)

_Configuration: TypeAlias = Annotated[Path | None, typer.Option(help="The configuration file; else lightning.toml.")]


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
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the daemon: gateway, ingest, store, trainer and engine; without a policy it records. Ctrl-C stops all."""
    from lightning_trainer.cli.daemon.exit_status import exit_status

    with one_sentence(exit_status):
        from lightning_trainer.cli.daemon.serve import serve as run

        run(config, verbose=verbose)


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
        )
        if environment is None:
            run_them(options)
        else:
            from lightning_trainer.cli.environments.rollouts import Play, play

            play(options, Play(environment, count, max_turns, max_tokens, temperature, instructions, history))


@app.command()
def plan(
    model: Annotated[
        list[str], typer.Option(help="A Hugging Face id, a folder, or a config.json; several are planned one by one.")
    ],
    hardware: Annotated[
        list[str],
        typer.Option(help="GPUs x memory: 1x80GB, 8x80GB; nodes before them: 2x8x80GB; auto: this machine's."),
    ],
    lora_rank: Annotated[int, typer.Option(help="Of the adapter that is planned as well.", min=1, max=512)] = 16,
    max_model_len: Annotated[int, typer.Option(help="Tokens of the longest sequence.", min=16)] = 4096,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    table: Annotated[bool, typer.Option("--table", help="As a table in Markdown, a row for each.")] = False,
) -> None:
    """Say what a model needs on some hardware, from its config.json alone, and which settings fit."""
    with one_sentence():
        from lightning_trainer.cli.plan import plan as show

        sys.exit(
            show(model, hardware, lora_rank=lora_rank, max_model_len=max_model_len, as_json=as_json, as_table=table)
        )


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Option(help="Also check what this configuration needs.")] = None,
) -> None:
    """Check interpreter, packages, cores, memory, ports and model; every failure says how to mend it."""
    with one_sentence():
        from lightning_trainer.cli.doctor import doctor as run

        sys.exit(run(config))


@app.command()
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
        from lightning_trainer.cli.agents import agents as run

        run(state_dir=state_dir, config=config, as_json=as_json, newest=None if everything else newest)


@app.command()
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
        bool, typer.Option("--retokenise", help="Make ids of text-only calls again, and verify them.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="Let this vLLM server (http://.../v1) score the ids made again.")
    ] = None,
    engine_model: Annotated[str | None, typer.Option(help="The model that it serves.")] = None,
) -> None:
    """Build samples, demonstrations or preference pairs from recorded spans, without a daemon; prints the ledger."""
    with one_sentence():
        from lightning_trainer.cli.build import Options
        from lightning_trainer.cli.build import build as run
        from lightning_trainer.dataset.forms import Form, Purpose

        options = Options(
            config=config,
            out=out,
            policy=policy,
            spans=tuple(spans or ()),
            calls=tuple(calls or ()),
            agents=tuple(agent or ()),
            purpose=_one_of(Purpose, "--for", purpose),
            form=None if form is None else _one_of(Form, "--format", form),
            tokens=tokens,
            advantages=advantages,
            min_reward=min_reward,
            retokenise=again,
            engine=engine,
            engine_model=engine_model,
        )
        sys.exit(run(options))


_Choice = TypeVar("_Choice", bound=StrEnum)


def _one_of(kind: type[_Choice], option: str, value: str) -> _Choice:
    # The kinds are not imported for every command's sake, so the option itself takes any text.
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{option} {value}: there are {', '.join(kind)}") from None


@app.command()
def versions(
    config: Annotated[Path, typer.Option(help="The configuration file.")] = Path("lightning.toml"),
    policy: Annotated[str | None, typer.Option(help="The policy, where there are several.")] = None,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 100,
    before: Annotated[int | None, typer.Option(help="Of those before this version.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List a policy's versions: parent, reward, held-out score, and whether each is served, stored or gone."""
    with one_sentence():
        from lightning_trainer.cli.versions import versions as run

        run(config, policy, as_json=as_json, limit=limit, before=before)


@app.command()
def status(
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    watch: Annotated[float | None, typer.Option(help="Look again every so many seconds.", min=0.2)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what the running daemon is doing: each policy's phase, served version, newest steps and warnings."""
    with one_sentence():
        from lightning_trainer.cli.daemon.status import status as run

        run(config, policy, as_json=as_json, watch_s=watch)


@app.command()
def health(
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
    ] = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Also ask whether every engine and training loop works.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.1)] = 10.0,
) -> None:
    """Say whether the daemon answers: exit status 0, else 1 and why; for the checks of containers and supervisors."""
    with one_sentence():
        from lightning_trainer.cli.daemon.health import health as run

        sys.exit(run(config, ready=ready, timeout_s=timeout))


@app.command()
def token(
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; lightning.toml where it is there.")
    ] = None,
) -> None:
    """Print the daemon's token, for curl and other languages: OPENAI_API_KEY=$(lightning-trainer token)."""
    with one_sentence():
        from lightning_trainer.cli.daemon.token import token as run

        run(config)


@app.command()
def rollback(
    version: Annotated[str, typer.Argument(help="12, v12, POLICY@v12, or best (by held-out score).")],
    policy: Annotated[str | None, typer.Option(help="The policy, where there are several.")] = None,
    config: Annotated[Path, typer.Option(help="The configuration file.")] = Path("lightning.toml"),
) -> None:
    """Serve an earlier version again and train on from it; works with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.rollback import rollback as run

        run(config, policy, version)


@app.command()
def drop(
    name: Annotated[str, typer.Argument(help="Id of a rollout, attempt or group; or a step: 12, or POLICY@12.")],
    kind: Annotated[
        str | None, typer.Option(help="Where it names several things.", metavar="rollout|group|step")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; `explain` says it.")] = "somebody dropped it",
    policy: Annotated[str | None, typer.Option(help="Whose step it is, where there are several policies.")] = None,
    config: _Configuration = None,
) -> None:
    """Take a rollout, a group or a recorded step out of what will be trained; with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.drop import drop as run
        from lightning_trainer.store.worklist.drops import Kind

        run(config, name, kind=None if kind is None else _one_of(Kind, "--kind", kind), policy=policy, reason=reason)


@app.command()
def pause(
    policy: Annotated[str | None, typer.Option(help="The policy, where there are several.")] = None,
    reason: Annotated[str, typer.Option(help="Why; `status` and the dashboard say it.")] = "somebody paused it",
    config: _Configuration = None,
) -> None:
    """Let training rest after the present step, over restarts as well, until `resume`; serving and capture go on."""
    with one_sentence():
        from lightning_trainer.cli.daemon.acting import pause as run

        run(config, policy, reason)


@app.command()
def resume(
    policy: Annotated[str | None, typer.Option(help="The policy, where there are several.")] = None,
    config: _Configuration = None,
) -> None:
    """Let training go on that `pause` has stopped; with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.acting import resume as run

        run(config, policy)


@app.command()
def label(
    rollout: Annotated[str, typer.Argument(help="Id of a rollout.")],
    reward: Annotated[float | None, typer.Option(help="What a person gives it; the newest of a name counts.")] = None,
    name: Annotated[str, typer.Option(help="Of the reward.")] = "reward",
    note: Annotated[str | None, typer.Option(help="Why, or anything worth knowing.")] = None,
    attempt: Annotated[str | None, typer.Option(help="Id of an attempt; else the rollout's last.")] = None,
    by: Annotated[str | None, typer.Option(help="Who says so.")] = None,
    config: _Configuration = None,
) -> None:
    """Give a rollout a reward or a note by hand; with the daemon running or stopped."""
    with one_sentence():
        from lightning_trainer.cli.daemon.acting import label_rollout as run

        run(config, rollout, reward=reward, name=name, note=note, attempt=attempt, by=by)


@app.command()
def ui(
    state_dir: Annotated[
        Path | None, typer.Option(help="The daemon's folder, where no configuration names it.")
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8322,
    config: _Configuration = None,
) -> None:
    """Show a stopped run in the browser, read only; of a running daemon, say where its dashboard is."""
    with one_sentence():
        from lightning_trainer.cli.daemon.ui import ui as run

        run(config, state_dir, port)


@app.command()
def feedback(
    config: _Configuration = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what people and systems said of answers: what counts, what waits, and how far each source is believed."""
    with one_sentence():
        from lightning_trainer.cli.daemon.feedback import feedback as run

        run(config, as_json=as_json)


@app.command()
def forget(
    source: Annotated[str | None, typer.Option(help="Erase all feedback of this source.")] = None,
    rollout: Annotated[str | None, typer.Option(help="Erase everything of this rollout or attempt.")] = None,
    config: _Configuration = None,
) -> None:
    """Erase a source's feedback or a rollout; says which versions were trained with it. With a daemon or without."""
    with one_sentence():
        from lightning_trainer.cli.daemon.feedback import forget as run

        run(config, source=source, rollout=rollout)


app.add_typer(environments, name="environments")
app.add_typer(scenarios, name="scenarios")

store = typer.Typer(no_args_is_help=True, help="Check, back up, restore, repair or compact the store.")
app.add_typer(store, name="store")


@store.command("check")
def store_check(
    config: _Configuration = None,
    quick: Annotated[bool, typer.Option("--quick", help="Not every index and checksum.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Look for damage, beside a running daemon or without one; exit status 1 where there is some."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import check as run

        sys.exit(run(config, quick=quick, as_json=as_json))


@store.command("backup")
def store_backup(
    folder: Annotated[Path, typer.Argument(help="To be made; gets the database and the newest checkpoints.")],
    config: _Configuration = None,
) -> None:
    """Copy the store, beside a running daemon or without one."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import backup as run

        run(config, folder)


@store.command("restore")
def store_restore(
    folder: Annotated[Path, typer.Argument(help="That `store backup` made.")],
    config: _Configuration = None,
) -> None:
    """Put a backup in the store's place, and what the journal has since; what was there is set aside."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import restore as run

        run(config, folder)


@store.command("repair")
def store_repair(config: _Configuration = None) -> None:
    """Write a damaged store anew with everything that can be read; the damaged file is set aside."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import repair as run

        run(config)


@store.command("compact")
def store_compact(config: _Configuration = None) -> None:
    """Make the store's file as small as what it holds; it takes as much free disk twice, and no running daemon."""
    with one_sentence():
        from lightning_trainer.cli.daemon.store import compact as run

        run(config)


@app.command()
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
        from lightning_trainer.cli.explain import Options, explain_rollouts

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


@app.command()
def judge(
    by: Annotated[str, typer.Option("--judge", help="Name of a [[judge]] of the configuration.")],
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
    config: _Configuration = None,
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
