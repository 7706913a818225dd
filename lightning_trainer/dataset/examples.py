"""Calls as examples for supervised fine-tuning and preference learning: one prompt, one answer, as words and as ids.

Unlike a sample for reinforcement learning, an example needs no log-probabilities and may come from any model: a larger
model's answer to the same prompt is a demonstration, too.
"""

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.reading import Recording
from lightning_trainer.retokenize.chat import ChatMessage, NoWordsError, chat_answer, chat_messages, chat_tools
from lightning_trainer.retokenize.texts import Words
from lightning_trainer.samples.credit.group_collector import regroup
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.samples.transitions.deduplication import deduplicate
from lightning_trainer.samples.transitions.eligibility import AGAINST_MODE
from lightning_trainer.samples.transitions.ledger import NO_AGENT, Ledger
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.token_ids import packed
from lightning_trainer.types import (
    Attempt,
    AttemptState,
    Call,
    Fidelity,
    LedgerRow,
    Outcome,
    Sample,
    Segment,
)


class Needs(StrEnum):
    """What a call must have to be written in a format: words, ids, or either."""

    WORDS = "words"
    TOKENS = "tokens"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class Example:
    """One answer to one prompt."""

    call_id: str
    agent: str
    attempt_id: str | None
    group_id: str | None
    fidelity: Fidelity
    model: str | None
    """The model that answered, as its server names it."""
    reward: float | None
    """The call's reward, else the agent's in the attempt, else the attempt's; None if nothing scored any of them."""
    prompt: tuple[ChatMessage, ...] | None
    """None if the words are not known."""
    answer: ChatMessage | None
    tools: tuple[dict, ...]
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """Empty if the ids are not known."""
    truncated: bool = False
    """Whether a token limit ended the answer."""

    @property
    def prompt_key(self) -> Hashable:
        """Return a key that equal prompts share: the ids if they are known, else the words."""
        return self.prompt_ids or json.dumps([self.prompt, self.tools], sort_keys=True)

    def says_the_same(self, other: "Example", needs: Needs = Needs.EITHER) -> bool:
        """Whether both answers are equal: in their ids if these are known and the format has them, else in words."""
        if needs is not Needs.WORDS and (self.response_ids or other.response_ids):
            return self.response_ids == other.response_ids
        return self.answer == other.answer


class ExampleLedger:
    """The account of which calls became examples and why the others did not; it balances like a batch's (promise 1)."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._samples: list[Sample] = []

    def receive(self, calls: Iterable[Call]) -> None:
        """Count calls as received; each is then dropped or kept exactly once."""
        for call in calls:
            self._ledger.receive(call)

    def drop(self, call: Call, reason: Reason, outcome: Outcome = Outcome.DROPPED) -> None:
        """Record why a call is not an example."""
        self._ledger.settle(call, outcome, reason)

    def keep(self, call: Call, example: Example, reason: Reason) -> None:
        """Record that a call is an example, and why."""
        self._ledger.settle(call, Outcome.TRAINED, reason)
        if example.response_ids:
            self._samples.append(_as_sample(example))

    def rows(self) -> tuple[LedgerRow, ...]:
        """Return the ledger.

        Raises:
            LedgerImbalanceError: a call was not settled, or settled twice.
        """
        return self._ledger.balance(self._samples)


def candidates(
    recording: Recording,
    policy: PolicyConfig,
    ledger: ExampleLedger,
    needs: Needs,
    *,
    failed_too: bool,
    corrections: Mapping[str, Correction] | None,
) -> tuple[list[tuple[Call, Example]], tuple[str, ...]]:
    """Return the calls that can be examples, oldest first, and a sentence about every reward that cannot be used.

    Args:
        recording: read with its words.
        ledger: receives all calls, and for each call that is not returned the reason why it cannot be an example.
        failed_too: also return calls of failed attempts (as the worse of a pair).
        corrections: corrections for the errors of judges, by the name of the reward.
    """
    ledger.receive(recording.calls)
    deliveries = deduplicate(recording.calls)
    for repeat, _ in deliveries.repeated:
        ledger.drop(repeat, Reason.DELIVERED_TWICE, Outcome.DEDUPLICATED)
    grouped = regroup(recording.attempts, deliveries.kept, policy, partial(_prompt, recording))
    attempts = {attempt.attempt_id: attempt for attempt in grouped}
    rewards = read_rewards(
        recording.evaluations, deliveries.kept, attempts, policy.reward_weights, deliveries.repeated, corrections
    )
    found: list[tuple[Call, Example]] = []
    for call in sorted(deliveries.kept, key=attrgetter("start_ns", "call_id")):
        attempt = None if call.attempt_id is None else attempts.get(call.attempt_id)
        reason = _not_asked_for(call, policy, attempt, failed_too=failed_too)
        if reason is not None:
            ledger.drop(call, reason)
            continue
        reward = rewards.of_calls.get(call.call_id)
        if reward is None and call.attempt_id is not None:
            of_agent = rewards.of_agents.get((call.attempt_id, call.agent or ""))
            reward = rewards.of_attempts.get(call.attempt_id) if of_agent is None else of_agent
        example = _example(call, recording.words.get(call.call_id), attempt, reward)
        # Ids without their images are not the whole prompt, and equal ids may belong to different images.
        reason = Reason.NO_WORDS if call.media else _lacks(example, needs)
        if reason is None:
            found.append((call, example))
        else:
            ledger.drop(call, reason)
    return found, (*rewards.problems, *rewards.incomplete.values())


def _prompt(recording: Recording, call: Call) -> bytes:
    """Return a key that equal prompts share, like ``Example.prompt_key``; empty if neither ids nor words are known."""
    if call.fidelity is not Fidelity.TEXT_ONLY:
        return packed(call.prompt_ids)
    words = recording.words.get(call.call_id)
    return b"" if words is None else json.dumps([words.prompt, words.tools], sort_keys=True, default=str).encode()


def _not_asked_for(call: Call, policy: PolicyConfig, attempt: Attempt | None, *, failed_too: bool) -> Reason | None:
    if not policy.claims(call.agent):
        return Reason.NO_AGENT if call.agent is None else Reason.NOT_SELECTED
    if not call.complete:
        return Reason.INCOMPLETE_STREAM
    if attempt is None:
        return None
    if call.rollout_id not in (None, attempt.rollout_id):
        return Reason.OTHER_ROLLOUT
    if attempt.mode in AGAINST_MODE:
        return AGAINST_MODE[attempt.mode]
    if attempt.state is AttemptState.RUNNING:
        return Reason.ATTEMPT_RUNNING
    return Reason.FAILED_ATTEMPT if attempt.state is AttemptState.FAILED and not failed_too else None


def _lacks(example: Example, needs: Needs) -> Reason | None:
    if example.fidelity is not Fidelity.TEXT_ONLY:
        if not example.prompt_ids:
            return Reason.EMPTY_PROMPT
        if not example.response_ids:
            return Reason.EMPTY_RESPONSE
    elif needs is Needs.TOKENS:
        return Reason.FIDELITY_TOO_LOW
    if needs is Needs.WORDS or example.fidelity is Fidelity.TEXT_ONLY:
        if example.answer is None:
            return Reason.NO_WORDS
        if not example.answer["content"] and not example.answer.get("tool_calls"):
            return Reason.EMPTY_RESPONSE
    return None


def _example(call: Call, words: Words | None, attempt: Attempt | None, reward: float | None) -> Example:
    prompt = answer = None
    tools: tuple[dict, ...] = ()
    if words is not None and words.answer is not None:
        try:
            prompt, answer = tuple(chat_messages(words.prompt)), chat_answer(words.answer)
            tools = tuple(chat_tools(words.tools))
        except NoWordsError:
            prompt = answer = None  # the ledger says no_words
    has_ids = call.fidelity is not Fidelity.TEXT_ONLY
    return Example(
        call_id=call.call_id,
        agent=call.agent or NO_AGENT,
        attempt_id=call.attempt_id,
        group_id=None if attempt is None else attempt.group_id,
        fidelity=call.fidelity,
        model=None if words is None else words.model,
        reward=reward,
        prompt=prompt,
        answer=answer,
        tools=tools,
        prompt_ids=tuple(call.prompt_ids) if has_ids else (),
        response_ids=tuple(call.response_ids) if has_ids else (),
        truncated=call.truncated,
    )


def _as_sample(example: Example) -> Sample:
    start, sampled = len(example.prompt_ids), len(example.response_ids)
    return Sample(
        sample_id=example.call_id,
        policy="",
        agent=example.agent,
        group_id=example.group_id or "",
        attempt_id=example.attempt_id or "",
        token_ids=example.prompt_ids + example.response_ids,
        loss_mask=(0,) * start + (1,) * sampled,
        behavior_logprobs=(0.0,) * (start + sampled),
        segments=(Segment(start, start + sampled, example.call_id, 0, None, example.call_id),),
    )
