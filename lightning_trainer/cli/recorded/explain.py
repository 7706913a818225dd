"""``lightning-trainer explain``: why a rollout was trained or not, from the store, or from files of spans."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from lightning_instrumentation import semconv
from rich.console import Console

from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import PolicyConfig, matches
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.dataset.sources import read_source
from lightning_trainer.errors import ConfigError, StoreError
from lightning_trainer.explain.as_json import as_json
from lightning_trainer.explain.console import show, show_list, show_problems
from lightning_trainer.explain.explainer import Explainer
from lightning_trainer.explain.explanation import Explanation
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import StorePlace, place_of, reading
from lightning_trainer.store.sqlite import in_memory
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables.rollouts import RolloutRow, has_part, nearest_names, select_named, select_recent
from lightning_trainer.store.upkeep.files import STORE
from lightning_trainer.types import Call, Span

_LISTED = 20
_EXPLAINED = 200
_SEARCHED = 500
"""The newest rollouts, among which those of one policy are looked for."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked on the command line."""

    config: Path | None
    rollout: str | None = None
    last: bool = False
    spans: tuple[Path, ...] = ()
    """Files of OTLP JSON lines, read instead of a store."""
    state_dir: Path | None = None
    html: Path | None = None
    as_json: bool = False
    policy: str | None = None
    """Explain for this one of several policies, and list its rollouts; None: each rollout for its own."""
    agent: str | None = None
    """Name or pattern: only rollouts in which it spoke."""


@dataclass(frozen=True, slots=True)
class _Source:
    connection: Connection
    place: str
    """For sentences: what was read."""
    problems: Sequence[str] = ()
    """What of the files was left out."""


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """One of several rollouts that the configuration cannot explain, with the fields of an explanation's JSON."""

    rollout_id: str
    headline: str
    verdict: None = None
    attempts: tuple[()] = ()


def explain_rollouts(options: Options) -> None:
    """Print one explanation, the first lines of several, or, without a name, the newest rollouts.

    Raises:
        LightningError: the configuration, the store or a file cannot be read, or there is no such rollout.
    """
    config = load_usual_config(options.config)
    policy = None if options.policy is None else config.named_policy(options.policy)
    only = policy if len(config.policy) > 1 else None
    console = TerminalConsole()
    with _source(options) as source:
        if options.rollout is None and not options.last and options.html is None:
            _list(source, options, only, console)
            return
        named = _named(source, options, only)
        if len(named) > 1 and options.html is not None:
            raise StoreError(
                f"{options.rollout!r} names {len(named)} rollouts, and one is drawn at a time: name it more exactly"
            )
        explainer = Explainer(source.connection, config, policy=policy, from_files=bool(options.spans))
        if len(named) > 1:
            _several(source, options, explainer, named, console)
            return
        explanation = explainer.explain(named[0])
    if options.as_json:
        _print_json([as_json(explanation)], source)
    else:
        show(explanation, console)
        show_problems(source.problems, console)
    if options.html is not None:
        _draw(explanation, explanation.told.case.policy.model if config.policy else None, options.html)
        if not options.as_json:
            console.print(f"drawn in {options.html}", style="dim", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _source(options: Options) -> Iterator[_Source]:
    if not options.spans:
        folder = options.state_dir
        store = StorePlace(folder / STORE) if folder is not None else place_of(load_usual_config(options.config))
        with reading(store) as connection:
            yield _Source(connection, f"the store {store}")
        return
    if options.state_dir is not None:
        raise ConfigError("--spans and --state-dir are two places to read from: name one of them")
    problems: list[str] = []
    spans: list[Span] = []
    for path in options.spans:
        if path.is_dir():
            raise ConfigError(f"--spans {path} is a folder: --spans takes files; a daemon's folder is --state-dir")
        spans += read_source(path, problems)
    with in_memory(spans) as connection:
        yield _Source(connection, ", ".join(map(str, options.spans)), problems)


def _named(source: _Source, options: Options, policy: PolicyConfig | None) -> list[str]:
    """Return the rollouts of that name; without a name the newest, of the policy where it is one of several."""
    connection, rollout, agent = source.connection, options.rollout, options.agent
    newest = [] if rollout else [row.rollout_id for row in _newest(connection, 1, policy, agent)]
    if found := select_named(connection, rollout) if rollout else newest:
        if spoken := [one for one in found if agent is None or _speaks(connection, one, agent)]:
            return spoken
        raise StoreError(f"agent {agent!r} made no call in rollout {rollout!r}; see `lightning-trainer agents`")
    if not rollout:
        raise StoreError(_no_rollout(source, policy, agent))
    nearest = nearest_names(connection, rollout)
    hint = f"the nearest are {', '.join(nearest)}" if nearest else "it has none; see `lightning-trainer agents`"
    raise StoreError(f"there is no rollout, attempt or task {rollout!r} in {source.place}: {hint}")


def _no_rollout(source: _Source, policy: PolicyConfig | None, agent: str | None) -> str:
    if agent is not None and select_recent(source.connection, 1):
        return (
            f"agent {agent!r} made no call in the newest {_SEARCHED} rollouts in {source.place}; see "
            "`lightning-trainer agents`"
        )
    if policy is not None and select_recent(source.connection, 1):
        return (
            f"there is no rollout of policy {policy.name!r} among the newest {_SEARCHED} in {source.place}: it "
            "answered no call of them, and they have no agent that it claims; see `lightning-trainer agents`"
        )
    return (
        f"there is no rollout in {source.place}: none of its spans names one, with {semconv.ROLLOUT_ID} and "
        f"{semconv.ATTEMPT_ID}"
    )


def _newest(connection: Connection, count: int, policy: PolicyConfig | None, agent: str | None) -> list[RolloutRow]:
    if policy is None and agent is None:
        return select_recent(connection, count)
    newest = (
        row
        for row in select_recent(connection, _SEARCHED)
        if (policy is None or _concerns(connection, row.rollout_id, policy))
        and (agent is None or _speaks(connection, row.rollout_id, agent))
    )
    return list(islice(newest, count))


def _speaks(connection: Connection, rollout_id: str, agent: str) -> bool:
    return any(call.agent is not None and matches(call.agent, [agent]) for call in _calls(connection, rollout_id))


def _calls(connection: Connection, rollout_id: str) -> Sequence[Call]:
    attempts = [one.attempt_id for one in attempt_table.select(connection, rollout_id=rollout_id)]
    return read_spans(span_table.select_of_attempts(connection, attempts)).calls


def _concerns(connection: Connection, rollout_id: str, policy: PolicyConfig) -> bool:
    if has_part(connection, rollout_id, policy.name):
        return True
    # It answered none of the calls; what it claims may still be among them, and then that is what there is to explain.
    return any(call.policy is None and policy.claims(call.agent) for call in _calls(connection, rollout_id))


def _list(source: _Source, options: Options, policy: PolicyConfig | None, console: Console) -> None:
    rows = _newest(source.connection, _LISTED, policy, options.agent)
    if options.as_json:
        _print_json([asdict(row) for row in rows], source)
        return
    if rows:
        show_list(rows, console)
        hint = "explain one by its id, its task, their beginning or a pattern; --last is the first"
        console.print(hint, style="dim", highlight=False, soft_wrap=True)
    else:
        console.print(_no_rollout(source, policy, options.agent), markup=False, highlight=False, soft_wrap=True)
    show_problems(source.problems, console)


def _several(source: _Source, options: Options, explainer: Explainer, named: Sequence[str], console: Console) -> None:
    """Print each one's first line; what one of them lacks to be explained does not keep the others from it."""
    newest = [_explained(explainer, rollout_id) for rollout_id in named[-_EXPLAINED:]]
    left_out = len(named) - len(newest)
    if options.as_json:
        _print_json(
            [asdict(one) if isinstance(one, _Unexplained) else as_json(one) for one in newest], source, left_out
        )
        return
    for one in newest:
        console.print(one.headline, markup=False, highlight=False, soft_wrap=True)
    if left_out:
        console.print(f"and {left_out} older ones; name them more exactly", style="dim")
    show_problems(source.problems, console)


def _explained(explainer: Explainer, rollout_id: str) -> Explanation | _Unexplained:
    try:
        return explainer.explain(rollout_id)
    except ConfigError as error:
        return _Unexplained(rollout_id, f"rollout {rollout_id} is not explained: {error}")


def _print_json(rollouts: Sequence[dict], source: _Source, left_out: int = 0) -> None:
    document = {"rollouts": rollouts, "older_ones_left_out": left_out, "problems": list(source.problems)}
    print(visible_json(document))


def _draw(explanation: Explanation, model: str | None, html: Path) -> None:
    from lightning_trainer.explain.page import render
    from lightning_trainer.explain.words import texts_of

    html.parent.mkdir(parents=True, exist_ok=True)
    partial = html.with_name(f"{html.name}.{os.getpid()}.partial")
    try:
        partial.write_text(render(explanation, texts_of(model)), encoding="utf-8")
        partial.replace(html)
    finally:
        partial.unlink(missing_ok=True)
