"""Judging attempts with one judge: attempts that lack its reward are judged, and the verdicts are stored.

A question that was already answered, at any time and for any caller, is not asked again; one in progress is waited
for. A caller that stops waiting does not stop the judge: the verdict is stored for the next caller.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from lightning_trainer.config.judges import ModelJudge
from lightning_trainer.errors import JudgeError, StoreError
from lightning_trainer.judges.attempts import JudgedAttempt, JudgedSpans
from lightning_trainer.judges.judge import Judge, Verdict
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.recording import (
    judged_otherwise,
    known_verdicts,
    question_digest,
    spending_span,
    verdict_spans,
)
from lightning_trainer.types import Attempt, Span, SpanSink

_log = logging.getLogger(__name__)

SpansOfTrace = Callable[[str], Awaitable[Sequence[Span]]]
"""Returns the stored spans of a trace."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result for one attempt."""

    attempt_id: str
    value: float | None
    """The sum, if several agents or calls were scored. None: there is no reward from this judge; ``reason`` says why.
    """
    reason: str
    remembered: bool = False
    """Whether the answer was reused."""


@dataclass(frozen=True, slots=True)
class _Answer:
    verdicts: Sequence[Verdict]
    remembered: bool


class Judging:
    """A judge in use by a daemon, or by one run of the command."""

    def __init__(self, judge: Judge, sink: SpanSink, spans_of_trace: SpansOfTrace) -> None:
        self.judge = judge
        self._sink = sink
        self._spans_of_trace = spans_of_trace
        self._asked: dict[str, asyncio.Task[_Answer]] = {}
        """Questions in progress, by digest."""

    @property
    def name(self) -> str:
        """Return the judge's name, which is also the name of the evaluations that it gives."""
        return self.judge.config.name

    async def judge_group(
        self,
        spans: Sequence[Span],
        attempts: Sequence[Attempt],
        budget: Budget,
        *,
        again: bool = False,
        renew: bool = False,
        shuffle: bool = False,
    ) -> list[Judged]:
        """Judge the attempts of one group that lack this judge's reward, and store the verdicts.

        Args:
            spans: all spans of the attempts.
            again: also judge attempts that have the reward from this judge, and do not reuse earlier answers.
            renew: also judge attempts that have the reward from this judge with other settings: otherwise, rewards of
                two judges would be compared in one group.
            shuffle: present the attempts in random order, to measure the judge's position bias.

        Returns:
            One result for each attempt that was judged; the judge's own errors are results, not exceptions.

        Raises:
            StoreError: the verdicts could not be stored.
        """
        started_ns = time.time_ns()
        units = await asyncio.to_thread(self.units, spans, attempts, again, renew)
        if shuffle:
            for unit in units:
                random.shuffle(unit)
        # A question that fails must not cost the others their verdicts: a task group would cancel them.
        asking = (self._judge_unit(unit, budget, started_ns, again=again) for unit in units)
        found: list[Judged] = []
        for of_unit in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(of_unit, BaseException):
                raise of_unit
            found += of_unit
        return found

    async def close(self) -> None:
        """Cancel the questions in progress."""
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self.judge.close()

    def units(
        self, spans: Sequence[Span], attempts: Sequence[Attempt], again: bool, renew: bool = False
    ) -> list[list[JudgedAttempt]]:
        """Return the attempts to judge, one list per question; takes as long as reading the spans."""
        read = JudgedSpans(spans, attempts)
        settled = read.scored(self.name, by_others=True)
        before, judged = judged_otherwise(spans, self.judge.config) if renew else set(), read.judged_ns(self.name)
        scored = settled if again else settled | (read.scored(self.name) - before)
        known = [
            replace(one, settled=one.attempt.attempt_id in settled, judged_ns=judged.get(one.attempt.attempt_id))
            for one in read.attempts
        ]
        lacking = [one for one in known if one.attempt.attempt_id not in scored]
        if not self.judge.config.of_groups:
            return [[one] for one in lacking]
        # An attempt that a model cannot read, such as one that broke off before its first call, must not keep the
        # others from being compared.
        asks_a_model = isinstance(self.judge.config, ModelJudge)
        apart = [one for one in lacking if asks_a_model and one.unreadable is not None]
        together = [one for one in known if not asks_a_model or one.unreadable is None]
        # Only scores from one question are comparable, so if one attempt lacks its score, all are judged. Their order
        # is derived from their content, and from nothing that could favor one of them.
        together.sort(key=lambda one: (one.digest, one.attempt.attempt_id))
        asked = any(one.attempt.attempt_id not in scored for one in together)
        return [*([together] if asked else []), *([one] for one in apart)]

    async def _judge_unit(
        self, unit: Sequence[JudgedAttempt], budget: Budget, started_ns: int, *, again: bool
    ) -> list[Judged]:
        digest, remembered = "", False
        spending = Budget(part_of=budget)
        try:
            question = await asyncio.to_thread(self.judge.question, unit)
            digest = question_digest(self.judge.config, question)
            answer = await self._answer(digest, unit, question, spending, again=again)
            verdicts, remembered = answer.verdicts, answer.remembered
        except JudgeError as error:
            verdicts = _missing(unit, str(error))
        except StoreError:
            raise
        except Exception as error:
            _log.exception("judge %s failed with an unexpected error", self.name)
            verdicts = _missing(unit, f"{type(error).__name__}: {error}")
        verdicts = [verdict for verdict in verdicts if not unit[verdict.place].settled]
        if self.judge.config.of_groups:
            verdicts = _comparable(unit, verdicts)
        config = self.judge.config
        digest = digest or question_digest(config, str([one.attempt.attempt_id for one in unit]))
        spans = verdict_spans(config, digest, unit, verdicts, started_ns=started_ns, again=again, remembered=remembered)
        if spending.calls:
            spans.append(spending_span(config, digest, spending, started_ns=started_ns))
        await self._sink.append(spans)
        return _judged(unit, verdicts, remembered)

    async def _answer(
        self, digest: str, unit: Sequence[JudgedAttempt], question: str, budget: Budget, *, again: bool
    ) -> _Answer:
        if not self.judge.cached:
            return _Answer(await self.judge.verdicts(unit, question, budget), False)
        if (task := self._asked.get(digest)) is None:
            task = asyncio.create_task(self._look_up_or_ask(digest, unit, question, budget, again=again))
            self._asked[digest] = task
            task.add_done_callback(lambda _: self._asked.pop(digest, None))
        return await asyncio.shield(task)

    async def _look_up_or_ask(
        self, digest: str, unit: Sequence[JudgedAttempt], question: str, budget: Budget, *, again: bool
    ) -> _Answer:
        if not again:
            known = known_verdicts(await self._spans_of_trace(digest), len(unit))
            if known is not None:
                return _Answer(known, True)
        return _Answer(await self.judge.verdicts(unit, question, budget), False)


def _missing(unit: Sequence[JudgedAttempt], reason: str) -> list[Verdict]:
    return [Verdict(place, None, reason) for place in range(len(unit))]


def _comparable(unit: Sequence[JudgedAttempt], verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Return the verdicts, but without their numbers if an attempt with a number from an earlier question got none now:
    its earlier number would be compared with those of this question."""
    lacking = next((one for one in verdicts if one.value is None and unit[one.place].judged_ns is not None), None)
    if lacking is None:
        return verdicts
    why = (
        f"attempt {unit[lacking.place].attempt.attempt_id} got no score this time ({lacking.reason}), and its earlier "
        "one cannot be compared with new ones, so the earlier scores stay"
    )
    return [one if one.value is None else replace(one, value=None, reason=why) for one in verdicts]


def _judged(unit: Sequence[JudgedAttempt], verdicts: Sequence[Verdict], remembered: bool) -> list[Judged]:
    found = []
    for place, one in enumerate(unit):
        if one.settled:
            continue
        own = [verdict for verdict in verdicts if verdict.place == place]
        values = [verdict.value for verdict in own if verdict.value is not None]
        reason = "; ".join(
            verdict.reason if len(own) == 1 else f"{verdict.agent or f'call {verdict.call}'}: {verdict.reason}"
            for verdict in own
        )
        value = sum(values) if values else None
        found.append(Judged(one.attempt.attempt_id, value, reason, remembered))
    return found
