"""Judging recorded attempts on request, in this process or in the daemon, and what that would cost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from lightning_trainer.config import Config
from lightning_trainer.config.judges import AnyJudge, ModelJudge
from lightning_trainer.daemon.rewards.chosen import Chosen, choose
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.judging import Judged, Judging
from lightning_trainer.judges.kinds.pairwise import PairwiseJudge
from lightning_trainer.judges.models.budget import Budget, estimated_tokens
from lightning_trainer.judges.recording import judged_otherwise, known_verdicts, question_digest
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import EngineOf
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables.steps import select_consumed
from lightning_trainer.types import Attempt, Span, SpanSink

_GROUPS_AT_ONCE = 32
"""Groups that are in memory."""
Result = TypeVar("Result")


class Reader(Protocol):
    """Runs a query of the store in a thread."""

    def __call__(self, query: Callable[[Connection], Result], /) -> Awaitable[Result]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to judge."""

    names: Sequence[str] = ()
    """Rollouts, attempts, tasks or groups; none: all since ``since``."""
    since: str | None = None
    again: bool = False
    shuffle: bool = False


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    groups: int = 0
    """Number of groups that are judged; 0 while it is not known."""
    done: int = 0
    """Number of those that are done."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a run."""

    judged: list[Judged]
    tasks: dict[str, str]
    """Task by id of each attempt that was judged."""
    kept: int
    """Number of attempts that had the reward already."""
    spent: dict[str, int]
    """``calls``, ``input_tokens`` and ``output_tokens``."""
    money: float
    trained_before: list[str]
    """Ids of judged attempts that a step had taken already."""
    left_out: list[str]
    """Phrases that say how many were not judged, and why."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would ask."""

    questions: int
    attempts: int
    characters: int
    tokens: int
    """About how many tokens the questions take, at most."""
    answered_before: int
    cannot_be_judged: list[str]
    """A sentence for each question that cannot be asked, with the reason."""
    left_out: list[str]
    first: str | None
    """The first question."""


@dataclass(slots=True, eq=False)
class ByHand:
    """One judge of a configuration, and the store of the attempts that it is asked about."""

    config: Config
    by: AnyJudge
    read: Reader
    engine_of: EngineOf
    progress: Progress = field(default_factory=Progress)

    async def choose(self, asked: Asked) -> Chosen:
        """Return the attempts that are asked for.

        Raises:
            LightningError: as ``chosen.choose``.
        """
        policy = next((one for one in self.config.policy if self.by.name in one.all_reward_names), None)
        whole = self.by.of_groups
        return await self.read(lambda store: choose(store, asked.names, asked.since, whole=whole, policy=policy))

    async def judge(self, chosen: Chosen, asked: Asked, sink: SpanSink) -> Done:
        """Judge those attempts that lack the reward, and store the verdicts.

        Raises:
            StoreError: the store cannot be read, or the verdicts could not be stored.
        """
        budget = Budget(self.by.budget if isinstance(self.by, ModelJudge) else None)
        places = asyncio.Semaphore(_GROUPS_AT_ONCE)
        judging = Judging(make_judge(self.by, self.engine_of), sink, self._spans_of_trace)
        self.progress.groups = len(chosen.groups)

        async def one(group: Sequence[Attempt]) -> tuple[list[Judged], int]:
            async with places:
                spans = await self._spans_of(group)
                judged = await judging.judge_group(spans, group, budget, again=asked.again, shuffle=asked.shuffle)
                kept = {attempt.attempt_id for attempt in group} - {one.attempt_id for one in judged}
                self.progress.done += 1
                return judged, len(kept & judged_otherwise(spans, self.by))

        tasks = [asyncio.ensure_future(one(group)) for group in chosen.groups]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await judging.close()
        judged = [one for of_group, _ in found for one in of_group]
        ids = [one.attempt_id for one in judged]
        late = await self.read(lambda store: select_consumed(store, attempt_ids=ids))
        task_of = {one.attempt_id: one.task_id for group in chosen.groups for one in group}
        before = sum(number for _, number in found)
        other = [f"{before} of them from the judge with other settings (--again)"] if before else []
        return Done(
            judged=judged,
            tasks={attempt: task_of[attempt] for attempt in ids},
            kept=len(task_of) - len(judged),
            spent=budget.spent,
            money=budget.money,
            trained_before=sorted(late),
            left_out=[*other, *chosen.left_out],
        )

    async def dry_run(self, chosen: Chosen, asked: Asked) -> DryRun:
        """Return what ``judge`` would ask, without asking it.

        Raises:
            StoreError: the store cannot be read.
        """
        judge = make_judge(self.by, self.engine_of)
        judging = Judging(judge, _Nowhere(), self._spans_of_trace)
        questions = chars = tokens = answered = attempts = 0
        first: str | None = None
        refused: list[str] = []
        seen: set[str] = set()
        self.progress.groups = len(chosen.groups)
        for group in chosen.groups:
            spans = await self._spans_of(group)
            for unit in await asyncio.to_thread(judging.units, spans, group, asked.again):
                try:
                    question = await asyncio.to_thread(judge.question, unit)
                except JudgeError as error:
                    refused.append(str(error))
                    continue
                attempts += len(unit)
                digest = question_digest(self.by, question)
                known = await self._spans_of_trace(digest)
                if judge.cached and not asked.again and known_verdicts(known, len(unit)) is not None:
                    answered += 1
                elif not judge.cached or digest not in seen:  # the same question is asked once
                    pairs = isinstance(judge, PairwiseJudge)
                    new = await asyncio.to_thread(judge.questions, unit) if pairs else [question]
                    first = first if first is not None or not new else new[0]
                    questions += len(new)
                    chars += sum(map(len, new))
                    tokens += sum(map(estimated_tokens, new))
                seen.add(digest)
            self.progress.done += 1
        await judging.close()
        return DryRun(questions, attempts, chars, tokens, answered, refused, list(chosen.left_out), first)

    async def _spans_of(self, group: Sequence[Attempt]) -> list[Span]:
        ids = [attempt.attempt_id for attempt in group]
        return await self.read(lambda store: span_table.select_of_attempts(store, ids))

    async def _spans_of_trace(self, trace_id: str) -> list[Span]:
        return await self.read(partial(_of_trace, trace_id))


def _of_trace(trace_id: str, connection: Connection) -> list[Span]:
    return span_table.select_of_trace(connection, trace_id)


class _Nowhere:
    async def append(self, spans: Sequence[Span]) -> int:
        raise AssertionError("nothing is stored")
