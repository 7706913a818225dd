"""``reference_probability``: how much a policy's own reasoning raises its probability of the reference answer.

Formula: ``clip(mean_i p(y_i | x, z, y_<i) - mean_i p(y_i | x, y_<i), 0, 1)``, where ``x`` is the prompt, ``z`` the
sampled reasoning, and ``y`` the reference's tokens. Source: Yu et al., "RLPR: Extrapolating RLVR to General Domains
without Verifiers" (arXiv 2506.18254), section 3; its filter by a moving floor of the groups' deviation is
``algorithm.deviation_floor``.

Prompt and reasoning are the recorded ids, never retokenized text. The reasoning is the policy's last answer up to the
place at which the final answer begins according to the pattern; without a match, it is the whole answer, followed by
the lead-in. Both probabilities come from one version: the one that is live at judging time. The reason names that
version, and the one that sampled if it is another.
"""

import asyncio
import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_trainer.config.judges import ReferenceProbabilityConfig
from lightning_trainer.environments.task_fields import field_of
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.judge import Verdict
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.scoring_engine import Scores, ScoringEngine


def reference_reward(with_reasoning: Sequence[float], without: Sequence[float]) -> float:
    """Return the reward of one attempt.

    Args:
        with_reasoning: logprobs of the reference's tokens after prompt and reasoning, in nats.
        without: the same after the prompt alone.
    """
    return min(1.0, max(0.0, mean_probability(with_reasoning) - mean_probability(without)))


def mean_probability(logprobs: Sequence[float]) -> float:
    """Return the mean of the tokens' probabilities, not of their logprobs, which a single rare token would dominate."""
    return math.fsum(map(math.exp, logprobs)) / len(logprobs)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The sequences to score for one attempt."""

    reads: str
    """The answer with the reference inserted, for display."""
    sampled_by: int | None
    prompt_ids: Sequence[int]
    with_reasoning: Sequence[int]
    """The tokens between prompt and reference: reasoning and lead-in."""
    without: Sequence[int]
    """The lead-in alone."""
    reference_ids: Sequence[int]

    def sequence(self, before: Sequence[int]) -> tuple[int, ...]:
        return (*self.prompt_ids, *before, *self.reference_ids)


class ReferenceProbabilityJudge:
    """Scores reasoning with the policy's own engine."""

    cached = True

    def __init__(self, config: ReferenceProbabilityConfig, engine: ScoringEngine) -> None:
        self.config = config
        self._engine = engine
        self._places = asyncio.Semaphore(config.concurrency)

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        told = [self._asked(one) for one in attempts]
        if all(isinstance(one, str) for one in told):
            raise JudgeError(str(told[0]))
        # One line per attempt: the reason why it cannot be scored, or what is scored.
        return "\n".join(json.dumps(one if isinstance(one, str) else asdict(one)) for one in told)

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        told = [json.loads(line) for line in question.split("\n")]
        asked = [one if isinstance(one, str) else _Asked(**one) for one in told]
        places: dict[tuple[int, ...], int] = {}
        for one in asked:
            if isinstance(one, _Asked):
                for before in (one.with_reasoning, one.without):
                    places.setdefault(one.sequence(before), len(places))
        try:
            async with self._places, asyncio.timeout(self.config.timeout_s):
                scores = await self._engine.score(list(places))
        except TimeoutError:
            raise JudgeError(
                f"the engine of policy {self._engine.policy} did not score {len(places)} sequences within timeout_s = "
                f"{self.config.timeout_s:g}; raise it"
            ) from None
        return [
            Verdict(place, None, one) if isinstance(one, str) else self._verdict(place, one, places, scores)
            for place, one in enumerate(asked)
        ]

    def _verdict(self, place: int, one: _Asked, places: Mapping[tuple[int, ...], int], scores: Scores) -> Verdict:
        count = len(one.reference_ids)
        known, guessed = (
            scores.logprobs[places[one.sequence(before)]][-count:] for before in (one.with_reasoning, one.without)
        )
        reason = (
            f"the reference's {count} tokens have probability {mean_probability(known):.4f} after the reasoning, "
            f"{mean_probability(guessed):.4f} without it; scored by {self._engine.policy}@v{scores.version}"
        )
        if one.sampled_by not in (None, scores.version):
            reason += f", sampled by v{one.sampled_by}"
        return Verdict(place, reference_reward(known, guessed), reason)

    async def close(self) -> None:
        pass

    def _asked(self, one: JudgedAttempt) -> _Asked | str:
        """Return what to score, or why the attempt cannot be scored."""
        name = one.attempt.attempt_id
        calls = [turn.call for turn in one.turns if turn.call.policy == self._engine.policy]
        if not calls:
            return f"attempt {name} has no call that policy {self._engine.policy} answered"
        call = calls[-1]
        if not call.prompt_ids or not call.response_ids:
            return f"the last call of attempt {name} has no exact ids, and words are not tokenized again"
        reference = self._reference(one)
        if reference is None:
            return (
                f"the input of attempt {name} has no text {self.config.reference!r}; give the reference answer with "
                f"lt.rollout(..., input={{'{self.config.reference}': ...}}), or name its field with reference = ..."
            )
        tokenizer, config = self._engine.tokenizer, self.config
        lead_in, reference_ids = _lead_in(tokenizer, config.lead_in, config.separator + reference)
        reasoning = _reasoning(tokenizer, tuple(call.response_ids), config.lead_in, config.begins)
        reads = _decoded(tokenizer, (*reasoning, *reference_ids))
        asked = _Asked(reads, call.policy_version, tuple(call.prompt_ids), reasoning, lead_in, reference_ids)
        tokens = max(len(asked.sequence(before)) for before in (reasoning, lead_in))
        if self._engine.longest is not None and tokens > self._engine.longest:
            # The engine refuses a request as a whole: the others of the group would lack their rewards too.
            return (
                f"the prompt, the reasoning and the reference of attempt {name} are {tokens} tokens, and the engine "
                f"scores {self._engine.longest}; raise engine.max_model_len, or limit the answer (max_tokens)"
            )
        return asked

    def _reference(self, one: JudgedAttempt) -> str | None:
        try:
            given = json.loads(one.asked or "null")
        except ValueError:
            return None
        value = field_of(given, self.config.reference) if isinstance(given, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        return value.strip() or None if isinstance(value, str) else None


def _lead_in(tokenizer: Any, lead_in: str, reference: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the lead-in and of the reference after it: the same ids in both sequences."""
    before = tuple(_encoded(tokenizer, lead_in))
    both = tuple(_encoded(tokenizer, lead_in + reference))
    if both[: len(before)] == before and len(both) > len(before):
        return before, both[len(before) :]
    return before, tuple(_encoded(tokenizer, reference))  # a token across the border would belong to both


def _reasoning(tokenizer: Any, response_ids: tuple[int, ...], lead_in: str, begins: re.Pattern[str]) -> tuple[int, ...]:
    """Return the ids before the reference: sampled ids as far as possible, then the missing part of the lead-in."""
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    while response_ids and response_ids[-1] in special:
        response_ids = response_ids[:-1]
    text = _decoded(tokenizer, response_ids)
    found = list(begins.finditer(text))
    if not found:
        separated = "" if not text or text[-1].isspace() else "\n"
        return (*response_ids, *_encoded(tokenizer, separated + lead_in))
    # The separator belongs to the reference: in most vocabularies a word's token begins with its space.
    end = len(text[: found[-1].end()].rstrip())
    kept = bisect_right(
        range(len(response_ids) + 1), end, key=lambda count: len(_decoded(tokenizer, response_ids[:count]))
    )
    kept = max(0, kept - 1)
    while kept and not text.startswith(_decoded(tokenizer, response_ids[:kept])):
        kept -= 1  # a character of several tokens is still incomplete
    rest = text[len(_decoded(tokenizer, response_ids[:kept])) : end]
    return (*response_ids[:kept], *(_encoded(tokenizer, rest) if rest else ()))


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)
