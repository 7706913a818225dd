"""``lightning-trainer judge``: recorded attempts of any age, judged by hand; with a daemon running or not."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
from rich.markup import escape
from rich.table import Table

from lightning_trainer.cli.daemon.running_daemon import async_daemon_client, running_daemon
from lightning_trainer.cli.judge.chosen import Chosen, choose
from lightning_trainer.cli.judge.report import report
from lightning_trainer.cli.terminal.console import TerminalConsole, visible, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.config.judges import AnyJudge, ModelJudge
from lightning_trainer.errors import ConfigError, EngineError, JudgeError, StoreError
from lightning_trainer.explain.finding import counted
from lightning_trainer.ingest.http.otlp import encode_request
from lightning_trainer.ingest.redacting import RedactingSink
from lightning_trainer.judges.judging import Judged, Judging
from lightning_trainer.judges.kinds.pairwise import PairwiseJudge
from lightning_trainer.judges.models.budget import Budget, estimated_tokens
from lightning_trainer.judges.recording import judged_otherwise, known_verdicts, question_digest
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import SCORE_PATH, EngineOf, engines_of
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import StorePlace, place_of, reading, store_at
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables.steps import select_consumed
from lightning_trainer.types import Attempt, Span, SpanSink

Read = TypeVar("Read")

_GROUPS_AT_ONCE = 32
"""That are in memory."""
_REASON_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked on the command line."""

    names: tuple[str, ...]
    """Rollouts, attempts, tasks or groups; none: all since ``since``."""
    judge: str
    config: Path | None = None
    since: str | None = None
    again: bool = False
    dry_run: bool = False
    report: bool = False
    """Ask no model; report how reliable the judge is."""
    shuffle: bool = False
    as_json: bool = False


def judge(options: Options) -> None:
    """Judge and print a table; ends with status 1 where an attempt got no reward.

    Raises:
        LightningError: the configuration or the store cannot be read, or nothing of the name is there.
    """
    config = load_usual_config(options.config)
    by = config.named_judge(options.judge)
    if options.report:
        report(config, by, as_json=options.as_json)
        return
    if options.shuffle and not options.again:
        raise ConfigError("--shuffle tells attempts in another order than before: it goes with --again")
    store = place_of(config)
    with reading(store) as connection:
        chosen = choose(
            connection,
            options.names,
            options.since,
            whole=make_judge(by, engines(config)).whole_group,
            policy=next((policy for policy in config.policy if by.name in policy.all_reward_names), None),
        )
    if options.dry_run:
        asyncio.run(_dry_run(config, by, store, chosen, options))
        return
    judged, budget, before = asyncio.run(_judge(config, by, store, chosen.groups, options))
    if before:
        said = f"{before} of them from the judge with other settings (--again)"
        chosen = replace(chosen, left_out=(said, *chosen.left_out))
    with reading(store) as connection:
        late = select_consumed(connection, attempt_ids=[one.attempt_id for one in judged])
    if options.as_json:
        document = {"judged": [asdict(one) for one in judged], "spent": budget.spent, "trained_before": sorted(late)}
        print(visible_json({**document, "left_out": chosen.left_out}))
    else:
        _show(judged, by, budget, chosen, late=len(late))
    if any(one.value is None for one in judged):
        sys.exit(1)


async def _judge(
    config: Config, by: AnyJudge, store: StorePlace, groups: Sequence[Sequence[Attempt]], options: Options
) -> tuple[list[Judged], Budget, int]:
    """Return the results, what they cost, and how many attempts keep what the judge gave them with other settings."""
    budget = Budget(by.budget if isinstance(by, ModelJudge) else None)
    places = asyncio.Semaphore(_GROUPS_AT_ONCE)

    async def one(judging: Judging, group: Sequence[Attempt]) -> tuple[list[Judged], int]:
        async with places:
            spans = await _read(store, partial(_spans_of, group))
            judged = await judging.judge_group(spans, group, budget, again=options.again, shuffle=options.shuffle)
            kept = {attempt.attempt_id for attempt in group} - {one.attempt_id for one in judged}
            return judged, len(kept & judged_otherwise(spans, by))

    async with _sink(config, store) as sink:
        judging = Judging(make_judge(by, engines(config)), sink, partial(_spans_of_trace, store))
        try:
            found = await asyncio.gather(*(one(judging, group) for group in groups))
        finally:
            await judging.close()
    return [judged for of_group, _ in found for judged in of_group], budget, sum(before for _, before in found)


async def _dry_run(config: Config, by: AnyJudge, store: StorePlace, chosen: Chosen, options: Options) -> None:
    judge = make_judge(by, engines(config))
    judging = Judging(judge, _Nowhere(), partial(_spans_of_trace, store))
    questions: list[str] = []
    refused: list[str] = []
    asked: set[str] = set()
    answered = attempts = 0
    for group in chosen.groups:
        spans = await _read(store, partial(_spans_of, group))
        for unit in judging.units(spans, group, options.again):
            try:
                question = judge.question(unit)
            except JudgeError as error:
                refused.append(str(error))
                continue
            attempts += len(unit)
            digest = question_digest(by, question)
            known = await _spans_of_trace(store, digest)
            if judge.cached and not options.again and known_verdicts(known, len(unit)) is not None:
                answered += 1
            elif not judge.cached or digest not in asked:  # the same question is asked once
                questions += judge.questions(unit) if isinstance(judge, PairwiseJudge) else [question]
            asked.add(digest)
    await judging.close()
    chars = sum(map(len, questions))
    tokens = sum(map(estimated_tokens, questions))
    if options.as_json:
        document = {
            **{"questions": len(questions), "attempts": attempts, "characters": chars, "tokens": tokens},
            **{"answered_before": answered, "cannot_be_judged": refused, "left_out": chosen.left_out},
            "first": questions[0] if questions else None,
        }
        print(visible_json(document))
        return
    for why in refused:
        print(visible(f"cannot be judged: {why}"))
    print(
        f"judge {by.name} would be asked {counted(len(questions), 'question')} about {counted(attempts, 'attempt')}: "
        f"{chars:,} characters, at most about {tokens:,} tokens and what it is told each time; "
        + "; ".join([f"questions that were answered before: {answered}", *chosen.left_out])
    )
    if questions:
        print(visible(f"\nthe first question:\n\n{questions[0]}"))


@asynccontextmanager
async def _sink(config: Config, store: StorePlace) -> AsyncIterator[SpanSink]:
    """Where verdicts go: to the daemon that has the store open, else into the store itself."""
    url = running_daemon(config)
    if url is None:
        async with store_at(store, config.store) as opened:
            yield RedactingSink.of(config.daemon, opened)
        return
    async with async_daemon_client(url, config, timeout_s=60.0) as client:
        yield _Daemon(client)


def engines(config: Config) -> EngineOf:
    """How a judge that asks a policy's own engine finds it: through the daemon that runs it."""

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
    """The daemon's receiver, as a span sink."""

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


class _Nowhere:
    async def append(self, spans: Sequence[Span]) -> int:
        raise AssertionError("nothing is stored")


async def _read(store: StorePlace, query: Callable[[Connection], Read]) -> Read:
    def read() -> Read:
        with reading(store) as connection:
            return query(connection)

    return await asyncio.to_thread(read)


async def _spans_of_trace(store: StorePlace, trace_id: str) -> list[Span]:
    return await _read(store, lambda connection: span_table.select_of_trace(connection, trace_id))


def _spans_of(group: Sequence[Attempt], connection: Connection) -> list[Span]:
    return span_table.select_of_attempts(connection, [attempt.attempt_id for attempt in group])


def _show(judged: Sequence[Judged], by: AnyJudge, budget: Budget, chosen: Chosen, *, late: int) -> None:
    console = TerminalConsole()
    attempts = {attempt.attempt_id: attempt for group in chosen.groups for attempt in group}
    if judged:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("attempt", "task", "score", "reason"):
            table.add_column(heading, overflow="fold")
        for one in judged:
            score = "[yellow]missing[/]" if one.value is None else f"{one.value:.3g}"
            reason = one.reason if len(one.reason) <= _REASON_SHOWN else f"{one.reason[:_REASON_SHOWN]} ..."
            before = " (answered before)" if one.remembered else ""
            table.add_row(
                escape(one.attempt_id), escape(attempts[one.attempt_id].task_id), score, escape(reason) + before
            )
        console.print(table)
    given = [one for one in judged if one.value is not None]
    kept = len(attempts) - len(judged)
    said = [f"judge {by.name} gave {len(given)} of {len(judged)} attempts a reward"]
    if kept:
        said.append(f"{kept} had it already")
    if budget.calls:
        cost = f", {budget.money:.4g} by your prices" if budget.money else ""
        said.append(f"{budget.calls} calls, {budget.input_tokens:,} + {budget.output_tokens:,} tokens{cost}")
    if late:
        said.append(f"{late} are in a step already, where these rewards come too late: stored, not trained")
    said += chosen.left_out
    console.print("; ".join(said), markup=False, highlight=False, soft_wrap=True)
