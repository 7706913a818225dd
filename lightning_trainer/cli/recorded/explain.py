"""``lightning-trainer explain``: why a rollout was trained or not, from the store, from files of spans, or from a
daemon elsewhere.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.cli.daemon.remote import ask, named_client
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.dataset.sources import read_source
from lightning_trainer.errors import ConfigError, StoreError
from lightning_trainer.explain.answer import Question, answer
from lightning_trainer.explain.console import show_answer
from lightning_trainer.explain.explanation import Explanation
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import StorePlace, place_of, reading
from lightning_trainer.store.sqlite import in_memory
from lightning_trainer.store.upkeep.files import STORE
from lightning_trainer.types import Span


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked on the command line."""

    config: Path | None
    question: Question
    spans: tuple[Path, ...] = ()
    """Files of OTLP JSON lines, read instead of a store."""
    state_dir: Path | None = None
    endpoint: str | None = None
    """URL of the daemon to ask; None: a store or files are read."""
    html: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    connection: Connection
    place: str
    """Name of what is read, for sentences."""
    problems: Sequence[str] | None = None
    """What was left out of the files; None: a store is read."""


def explain_rollouts(options: Options) -> None:
    """Print one explanation, the first line of each of several, or, without a name, the newest rollouts.

    Raises:
        LightningError: the configuration, the store or a file cannot be read, there is no such rollout, or the daemon
            does not answer.
    """
    if options.endpoint is not None:
        _explain_there(options.endpoint, options)
        return
    config = load_usual_config(options.config)
    with _source(options) as source:
        told = answer(source.connection, config, options.question, place=source.place, problems=source.problems)
    if options.html is not None and len(told.explained) > 1:
        raise StoreError(
            f"{options.question.rollout!r} names {len(told.explained) + told.left_out} rollouts, and one is drawn at a "
            "time: name it more exactly"
        )
    console = TerminalConsole()
    if options.as_json:
        print(visible_json(told.document()))
    else:
        show_answer(told, console)
    if options.html is None:
        return
    for explanation in told.explained:
        if isinstance(explanation, Explanation):
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


def _explain_there(endpoint: str, options: Options) -> None:
    url = checked_endpoint(endpoint)
    if options.html is not None:
        raise ConfigError(f"--html draws what is read here; the token tree of a rollout there is a page of {url}/")
    console = TerminalConsole()
    question = {name: value for name, value in asdict(options.question).items() if value is not None}
    width = min(max(console.width, 40), 1000)  # the range that the daemon accepts
    with named_client(url, options.config) as client:
        told = ask(url, client, "GET", "/lightning/explain", params={**question, "width": width})
    if options.as_json:
        print(visible_json(told["document"]))
        return
    first, _, rest = told["text"].rstrip("\n").partition("\n")
    console.print(first, style="bold", markup=False, highlight=False, soft_wrap=True)
    if rest:
        console.print(rest, markup=False, highlight=False, soft_wrap=True)


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
