"""``lightning-trainer judge``: judge recorded attempts of any age on request: here, with or without a daemon, or at a
daemon elsewhere, with its store, its judges and their keys.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from lightning_instrumentation.settings import checked_endpoint
from rich.live import Live

from lightning_trainer.cli.daemon.remote import named_client
from lightning_trainer.cli.daemon.running_daemon import async_daemon_client, running_daemon
from lightning_trainer.cli.judge.showing import show_done, show_dry_run, show_report
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.api.judging import JUDGE_PATH
from lightning_trainer.daemon.rewards.by_hand import Asked, ByHand, Done, DryRun, Progress
from lightning_trainer.errors import ConfigError, EngineError, StoreError
from lightning_trainer.ingest.http.otlp import encode_request
from lightning_trainer.ingest.redacting import RedactingSink
from lightning_trainer.judges.judging import Judged
from lightning_trainer.judges.reliability.report import judge_report
from lightning_trainer.judges.reliability.summary import ReportSummary, summarize
from lightning_trainer.judges.scoring_engine import SCORE_PATH, EngineOf, engines_of
from lightning_trainer.rollouts.daemon_client import not_a_daemon, refusal
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import StorePlace, place_of, reading, store_at
from lightning_trainer.types import Span, SpanSink

Read = TypeVar("Read")

_SILENCE_S = 300.0
"""Longest wait for a daemon's answer; it reports progress every two seconds, once it has found what to judge."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked on the command line."""

    names: tuple[str, ...]
    """Rollouts, attempts, tasks or groups; empty: all since ``since``."""
    judge: str
    config: Path | None = None
    endpoint: str | None = None
    """URL of the daemon that judges; None: judge here, for the configuration's store."""
    since: str | None = None
    again: bool = False
    dry_run: bool = False
    report: bool = False
    """Ask no model; report how reliable the judge is."""
    shuffle: bool = False
    as_json: bool = False


def judge(options: Options) -> None:
    """Judge and print a table; exit with status 1 if an attempt got no reward.

    Raises:
        LightningError: the configuration or the store cannot be read, nothing has the name, or the daemon failed on
            it.
    """
    if options.shuffle and not options.again:
        raise ConfigError("--shuffle tells attempts in another order than before: it goes with --again")
    found = _here(options) if options.endpoint is None else _elsewhere(options, checked_endpoint(options.endpoint))
    if options.as_json:
        print(visible_json(_document(found)))
    elif isinstance(found, ReportSummary):
        show_report(found, options.judge)
    elif isinstance(found, DryRun):
        show_dry_run(found, options.judge)
    else:
        show_done(found, options.judge)
    if isinstance(found, Done) and any(one.value is None for one in found.judged):
        sys.exit(1)


def _document(found: Done | DryRun | ReportSummary) -> dict[str, Any]:
    if isinstance(found, ReportSummary):
        return found.document
    document = asdict(found)
    if isinstance(found, DryRun):
        return document
    return {name: document[name] for name in ("judged", "spent", "trained_before", "left_out")}


def _here(options: Options) -> Done | DryRun | ReportSummary:
    config = load_usual_config(options.config)
    by = config.named_judge(options.judge)
    store = place_of(config)
    if options.report:
        with reading(store) as connection:
            return summarize(judge_report(connection, by), by)
    with _shown_progress() as progress:
        hand = ByHand(config, by, partial(_read, store), engines(config), progress)
        return asyncio.run(_by_hand(hand, options, store))


async def _by_hand(hand: ByHand, options: Options, store: StorePlace) -> Done | DryRun:
    asked = Asked(options.names, options.since, options.again, options.shuffle)
    chosen = await hand.choose(asked)
    if options.dry_run:
        return await hand.dry_run(chosen, asked)
    async with _sink(hand.config, store) as sink:
        return await hand.judge(chosen, asked, sink)


def _elsewhere(options: Options, url: str) -> Done | DryRun | ReportSummary:
    """Have the daemon at the URL judge; interrupting the command stops its judge."""
    body = {
        "judge": options.judge,
        "names": list(options.names),
        "since": options.since,
        "again": options.again,
        "shuffle": options.shuffle,
        "dry_run": options.dry_run,
        "report": options.report,
    }
    try:
        with _shown_progress() as progress, named_client(url, options.config, timeout_s=_SILENCE_S) as client:
            document = _result(url, client, body, progress)
    except httpx.HTTPError as error:
        raise StoreError(
            f"the daemon at {url} did not answer ({type(error).__name__}: {error}); verdicts until then are stored"
        ) from error
    try:
        if options.report:
            return ReportSummary(**document)
        if options.dry_run:
            return DryRun(**document)
        return Done(**{**document, "judged": [Judged(**one) for one in document["judged"]]})
    except (KeyError, TypeError) as error:
        why = f"its answer about the judge cannot be read: {type(error).__name__}: {error}"
        raise StoreError(not_a_daemon(url, why)) from error


def _result(url: str, client: httpx.Client, body: dict[str, Any], progress: Progress) -> Any:
    with client.stream("POST", JUDGE_PATH, json=body) as answer:
        if not answer.is_success:
            raise StoreError(refusal(url, answer.status_code, answer.read()))
        try:
            for line in answer.iter_lines():
                said = json.loads(line)
                if "done" in said:
                    return said["done"]
                if "error" in said:
                    raise StoreError(f"the daemon's judge ended in an error: {said['error']} ({url})")
                progress.groups, progress.done = said["working"]["groups"], said["working"]["done"]
        except (KeyError, TypeError, ValueError) as error:
            why = f"its answer about the judge cannot be read: {type(error).__name__}: {error}"
            raise StoreError(not_a_daemon(url, why)) from error
    raise StoreError(f"the daemon at {url} ended before its judge was done; verdicts until then are stored")


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """Yield a counter of judged groups, which a terminal shows."""
    progress = Progress()

    def line() -> str:
        return f"{progress.done} of {progress.groups} groups are judged" if progress.groups else ""

    with Live(get_renderable=line, console=TerminalConsole(stderr=True), transient=True):
        yield progress


@asynccontextmanager
async def _sink(config: Config, store: StorePlace) -> AsyncIterator[SpanSink]:
    """Yield where verdicts go: the daemon that has the store open, else the store itself."""
    url = running_daemon(config)
    if url is None:
        async with store_at(store, config.store) as opened:
            yield RedactingSink.of(config.daemon, opened)
        return
    async with async_daemon_client(url, config, timeout_s=60.0) as client:
        yield _Daemon(client)


def engines(config: Config) -> EngineOf:
    """Return how a judge finds a policy's own engine: through the daemon that runs it."""

    async def post(body: bytes) -> tuple[int, bytes]:
        url = running_daemon(config)
        if url is None:
            raise EngineError("no daemon runs it; start `lightning-trainer serve` with the same configuration")
        async with async_daemon_client(url, config, timeout_s=3600.0) as client:
            try:
                answer = await client.post(SCORE_PATH, content=body, headers={"content-type": "application/json"})
            except httpx.HTTPError as error:
                raise EngineError(f"the daemon did not answer ({type(error).__name__}: {error})") from error
        return answer.status_code, answer.content

    return engines_of(config, lambda _: post)


class _Daemon:
    """The daemon's receiver of spans, as a span sink."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def append(self, spans: Sequence[Span]) -> int:
        body, kind = encode_request(spans), {"content-type": "application/x-protobuf"}
        try:
            answer = await self._client.post("/v1/traces", content=body, headers=kind)
        except httpx.HTTPError as error:
            raise StoreError(f"the daemon did not take the verdicts ({type(error).__name__}: {error})") from error
        if answer.status_code != httpx.codes.OK:
            raise StoreError(f"the daemon did not take the verdicts (HTTP {answer.status_code}: {answer.text[:300]})")
        return len(spans)


async def _read(store: StorePlace, query: Callable[[Connection], Read]) -> Read:
    def read() -> Read:
        with reading(store) as connection:
            return query(connection)

    return await asyncio.to_thread(read)
