"""``pairwise``: attempts in pairs, each pair in both orders, scored by Bradley-Terry.

A judge that prefers the first position gives two different answers for one pair, which counts as a tie. A pair for
which an answer cannot be used does not count. If the budget or the endpoint ends a comparison in the middle, there are
no scores: they would depend on which pairs had been compared by then.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence, Set
from typing import Any

from lightning_trainer.config.judges import PairwiseConfig
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.judge import Verdict
from lightning_trainer.judges.kinds import tournament
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import ModelClient, ask
from lightning_trainer.judges.models.structured_output import Answer, MalformedAnswerError
from lightning_trainer.judges.rendering import Rendered, rendered
from lightning_trainer.judges.system_prompts import system_prompt

_TIE = "tie"
_ALIKE = 0.5
_MOST_GAPS = 0.1
"""Largest share of pairs that may go unasked in groups compared in rounds, as when an endpoint fails for a moment."""


class PairAnswer(Answer):
    """What the judge model answers about two attempts: a reason, and the code of the better one or ``tie``."""

    reason: str
    better: str


class PairwiseJudge:
    """Compares attempts in pairs."""

    cached = True

    def __init__(self, config: PairwiseConfig, client: ModelClient) -> None:
        self.config = config
        self._client = client

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        texts = [rendered([one], self.config.max_chars).text for one in attempts]
        if len(attempts) < 2:
            raise JudgeError("a pairwise judge compares attempts, and the group has only one; use a rubric for that")
        return json.dumps(texts)

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        places = len(attempts)
        results: dict[tournament.Pair, float] = {}
        met: set[tournament.Pair] = set()
        said: list[list[str]] = [[] for _ in attempts]
        failed: list[str] = []
        gaps: dict[tournament.Pair, str] = {}
        for number in range(self._rounds(places)):
            pairs = self._round(places, results, met)
            met.update(pairs)
            found = await asyncio.gather(*(self._compare(attempts, pair, budget, said, failed, gaps) for pair in pairs))
            results |= {pair: won for pair, won in zip(pairs, found, strict=True) if won is not None}
            if number == 0 and not results:
                break  # no answers: further rounds would cost as much and yield as little
        if not results:
            raise JudgeError(failed[0] if failed else "no pair was compared")
        compared = {place for pair in results for place in pair}
        between = [why for pair, why in gaps.items() if compared.issuperset(pair)]
        if len(between) > (0.0 if places <= self.config.all_pairs else _MOST_GAPS * len(met)):
            raise JudgeError(f"{len(between)} of {len(met)} pairs were not compared: {between[0]}")
        given = tournament.scores(places, results)
        return [
            Verdict(place, given[place], "; ".join(said[place]) if given[place] is not None else _not_compared(failed))
            for place in range(places)
        ]

    async def close(self) -> None:
        await self._client.close()

    def questions(self, attempts: Sequence[JudgedAttempt]) -> list[str]:
        """Return the questions that the model would be asked, without retries; for later rounds, whose pairs depend on
        the answers, as if all answers were ties."""
        places = len(attempts)
        results: dict[tournament.Pair, float] = {}
        asked: list[str] = []
        for _ in range(self._rounds(places)):
            for one, other in (pairs := self._round(places, results, set(results))):
                if attempts[one].digest != attempts[other].digest:
                    asked += [
                        _question(rendered(both, self.config.max_chars))
                        for both in ([attempts[one], attempts[other]], [attempts[other], attempts[one]])
                    ]
            results |= dict.fromkeys(pairs, _ALIKE)
        return asked

    def _rounds(self, places: int) -> int:
        return 1 if places <= self.config.all_pairs else tournament.rounds_of(places)

    def _round(
        self, places: int, results: Mapping[tournament.Pair, float], met: Set[tournament.Pair]
    ) -> list[tournament.Pair]:
        everybody = places <= self.config.all_pairs
        return tournament.all_pairs(places) if everybody else tournament.next_round(places, results, met)

    async def _compare(
        self,
        attempts: Sequence[JudgedAttempt],
        pair: tournament.Pair,
        budget: Budget,
        said: list[list[str]],
        failed: list[str],
        gaps: dict[tournament.Pair, str],
    ) -> float | None:
        """Return how much the first of a pair won; None if one of the two questions was not answered.

        Args:
            gaps: gets the pair, with the reason, if an answer is missing and not merely unusable.
        """
        one, other = pair
        if attempts[one].digest == attempts[other].digest:
            return _ALIKE  # identical text: no need to ask
        try:
            forth, back = await asyncio.gather(
                self._ask(attempts[one], attempts[other], budget), self._ask(attempts[other], attempts[one], budget)
            )
        except JudgeError as error:
            failed.append(str(error))
            if not isinstance(error, MalformedAnswerError):
                gaps[pair] = str(error)
            return None
        won = {one: forth[0], other: back[0]}
        agreed = won[one] + won[other] == 1.0
        verdict = won[one] if agreed else _ALIKE
        for place, share, opponent in ((one, verdict, other), (other, 1.0 - verdict, one)):
            what = {1.0: "better than", 0.0: "worse than"}.get(share, "as good as")
            why = forth[1] if agreed else "the answers in the two orders differ"
            said[place].append(f"{what} {attempts[opponent].attempt.attempt_id}: {why}")
        return verdict

    async def _ask(self, first: JudgedAttempt, second: JudgedAttempt, budget: Budget) -> tuple[float, str]:
        """Return how much the first won, in this order, and why."""
        shown = await asyncio.to_thread(rendered, [first, second], self.config.max_chars)

        def check(answer: PairAnswer) -> None:
            if answer.better not in (*shown.codes, _TIE):
                raise MalformedAnswerError(
                    f"better is {answer.better!r}; it has to be {', '.join(shown.codes)} or {_TIE}"
                )

        answer: Any = await ask(
            self._client,
            self.config,
            budget,
            system=system_prompt(self.config, PairAnswer),
            question=_question(shown),
            shape=PairAnswer,
            check=check,
        )
        return {shown.codes[0]: 1.0, shown.codes[1]: 0.0}.get(answer.better, _ALIKE), answer.reason


def _question(shown: Rendered) -> str:
    return f"{shown.text}\n\nWhich is better: {' or '.join(shown.codes)}? Answer with its code, or {_TIE}."


def _not_compared(failed: Sequence[str]) -> str:
    return f"it was compared with too few others: {failed[0]}" if failed else "it was compared with too few others"
