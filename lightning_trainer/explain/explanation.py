"""An explanation of a rollout, for a terminal and a page: the cause first, then the evidence."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lightning_trainer.explain.call_tree import CallNode, call_tree
from lightning_trainer.explain.case import Case, ExplainedOutcome
from lightning_trainer.explain.diagnoses.registry import findings
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.samples.transitions.ledger import NO_AGENT
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.records import StepState
from lightning_trainer.types import LedgerRow, Outcome


class Verdict(StrEnum):
    """Whether an attempt is trained."""

    TRAINED = "is trained"
    IN_PART = "is trained in part"
    IN_TRAINING = "is being trained"
    NOT_YET = "is not trained yet"
    NOT = "is not trained"
    TAKEN = "was taken by a step"
    """The details of what was trained are no longer available."""
    WOULD = "would be trained"
    WOULD_IN_PART = "would be trained in part"
    WOULD_NOT = "would not be trained"


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """One call in the token tree, and its outcome."""

    node: CallNode
    call_outcome: ExplainedOutcome
    reward: float | None
    """The call's own reward."""
    credit: float | None
    """The credit that the scheme gave the call, if it was trained."""
    advantages: tuple[float, ...] | None
    """Advantages of the call's sampled tokens, if it was trained."""
    mask: tuple[int, ...] | None = None
    """For each sampled token that a sample contains, whether it is trained (1) or had no alternative (0). Only for
    trained calls."""

    @property
    def trained_tokens(self) -> int:
        """Return the number of trained tokens, for a trained call."""
        return len(self.node.call.response_ids) if self.mask is None else sum(self.mask)


@dataclass(frozen=True, slots=True)
class ExplainedAttempt:
    """The explanation of one attempt."""

    case: Case
    verdict: Verdict
    findings: tuple[Finding, ...]
    calls: tuple[ExplainedCall, ...]
    """By start time."""
    ledger: tuple[LedgerRow, ...]
    """For this attempt's sampled tokens."""
    problems: tuple[str, ...]
    """Problems reported by the build that name this attempt, its group, or its spans."""
    reward: float | None
    """The attempt's own reward."""

    @property
    def sampled_tokens(self) -> int:
        """Return how many tokens the attempt's calls sampled."""
        return sum(len(call.node.call.response_ids) for call in self.calls)

    @property
    def balances(self) -> bool:
        """Whether every sampled token is in the ledger exactly once (promise 1)."""
        return sum(row.tokens for row in self.ledger) == self.sampled_tokens

    @property
    def good(self) -> bool:
        """Whether all of the attempt is trained, or would be, and still counts."""
        whole = self.verdict in (Verdict.TRAINED, Verdict.IN_TRAINING, Verdict.WOULD)
        return whole and self.case.judged.left_behind is None

    @property
    def headline(self) -> str:
        """Return the cause in one line."""
        cause = f"{self.findings[0].name}: {self.findings[0].sentence}" if self.findings else None
        start = f"rollout {self.case.rollout_id} {self.verdict}"
        if self.verdict in (Verdict.NOT, Verdict.NOT_YET, Verdict.WOULD_NOT):
            return f"{start}: {cause or 'its calls and rewards are in order'}"
        if cause is None:
            return f"{start}: {self._amount()}"
        but = ": " if self.verdict in (Verdict.IN_PART, Verdict.WOULD_IN_PART) else ", but "
        return f"{start} ({self._amount()}){but}{cause}"

    def _amount(self) -> str:
        own = {call.call_id for call in self.case.own}
        trained = [call for call in self.calls if call.call_outcome.outcome is Outcome.TRAINED]
        ours = [call for call in self.calls if call.node.call.call_id in own]
        tokens, all_tokens = sum(call.trained_tokens for call in trained), _tokens(ours)
        step = f"step {self.case.judged.step.step}, " if self.case.judged.step is not None else ""
        if self.case.expired_ns is not None:
            return step.removesuffix(", ")
        if len(trained) == len(ours):
            return f"{step}{counted(len(trained), 'call')}, {counted(tokens, 'sampled token')}"
        return (
            f"{step}{len(trained)} of {counted(len(ours), 'call')}, {tokens} of {counted(all_tokens, 'sampled token')}"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """A rollout, attempt by attempt."""

    rollout_id: str
    attempts: tuple[ExplainedAttempt, ...]

    @property
    def told(self) -> ExplainedAttempt:
        """Return the attempt that was trained, else the last one: a rollout's outcome is that of its last attempt."""
        return next((attempt for attempt in self.attempts if attempt.verdict in _TAKEN), self.attempts[-1])

    @property
    def headline(self) -> str:
        """Return the cause in one line."""
        if len(self.attempts) == 1:
            return self.told.headline
        return f"{self.told.headline} (attempt {self.attempts.index(self.told) + 1} of {len(self.attempts)})"


_TAKEN = (Verdict.TRAINED, Verdict.IN_PART, Verdict.IN_TRAINING, Verdict.WOULD, Verdict.WOULD_IN_PART)


def explain(cases: Sequence[Case]) -> Explanation:
    """Explain a rollout.

    Args:
        cases: one per attempt, by start; at least one.
    """
    return Explanation(cases[0].rollout_id, tuple(_explained(case) for case in cases))


def _explained(case: Case) -> ExplainedAttempt:
    credits, advantages, masks = _trained_with(case)
    rewards = case.judged.build.rewards
    calls = tuple(
        ExplainedCall(
            node=node,
            call_outcome=case.call_outcomes[node.call.call_id],
            reward=rewards.of_calls.get(node.call.call_id),
            credit=credits.get(node.call.call_id),
            advantages=advantages.get(node.call.call_id),
            mask=masks.get(node.call.call_id),
        )
        for node in call_tree(case.calls)
    )
    return ExplainedAttempt(
        case=case,
        verdict=_verdict(case),
        findings=findings(case),
        calls=calls,
        ledger=_ledger(case, masks),
        problems=_problems(case),
        reward=None if case.attempt_id is None else rewards.earned.get(case.attempt_id),
    )


def _verdict(case: Case) -> Verdict:
    step = case.judged.step
    if step is not None and (case.expired_ns is not None or case.judged.batch_deleted):
        return Verdict.TAKEN
    call_outcomes = [case.call_outcomes[call.call_id] for call in case.own]
    trained = any(call_outcome.outcome is Outcome.TRAINED for call_outcome in call_outcomes)
    # A call whose tokens had no alternative teaches nothing, so the attempt is whole without it.
    whole = trained and all(
        call_outcome.outcome in (Outcome.TRAINED, Outcome.DEDUPLICATED) or call_outcome.reason == Reason.NO_CHOICE
        for call_outcome in call_outcomes
    )
    if case.from_files:
        return Verdict.WOULD if whole else Verdict.WOULD_IN_PART if trained else Verdict.WOULD_NOT
    if step is None:
        return Verdict.NOT_YET if case.waits or case.attempt is None or case.attempt.ended_ns is None else Verdict.NOT
    if not trained:
        return Verdict.NOT
    if step.state is StepState.ASSIGNED:
        return Verdict.NOT if case.judged.left_behind is not None else Verdict.IN_TRAINING
    return Verdict.TRAINED if whole else Verdict.IN_PART


def _trained_with(
    case: Case,
) -> tuple[Mapping[str, float], Mapping[str, tuple[float, ...]], Mapping[str, tuple[int, ...]]]:
    """Return credits, advantages, and masks by call id, from the batch and the step's report."""
    credits: dict[str, float] = {}
    advantages: dict[str, tuple[float, ...]] = {}
    masks: dict[str, tuple[int, ...]] = {}
    judged = case.judged
    report = None if judged.step is None else judged.step.report
    for sample in judged.batch.samples if judged.batch is not None else ():
        row = () if report is None else report.advantages.get(sample.sample_id, ())
        for segment in sample.segments:
            if (segment.attempt_id or sample.attempt_id) != case.attempt_id:
                continue
            masks[segment.transition_id] = tuple(sample.loss_mask[segment.start : segment.end])
            if segment.credit is not None:
                credits[segment.transition_id] = segment.credit
            if row:
                advantages[segment.transition_id] = tuple(row[segment.start : segment.end])
    return credits, advantages, masks


def _ledger(case: Case, masks: Mapping[str, tuple[int, ...]]) -> tuple[LedgerRow, ...]:
    rows: dict[tuple, list[int]] = {}
    for call in case.calls:
        call_outcome, sampled = case.call_outcomes[call.call_id], len(call.response_ids)
        parts: dict[tuple[str, str], int] = {(call_outcome.outcome, call_outcome.reason): sampled}
        if (mask := masks.get(call.call_id)) is not None and call_outcome.outcome is Outcome.TRAINED:
            parts = {
                (call_outcome.outcome, call_outcome.reason): sum(mask),
                (Outcome.MASKED, Reason.NO_CHOICE.value): len(mask) - sum(mask),
                (Outcome.DROPPED, Reason.CUT.value): sampled - len(mask),
            }
        for part, tokens in parts.items():
            if tokens or len(parts) == 1:
                rows.setdefault((call.agent or NO_AGENT, call.policy, call.policy_version, *part), []).append(tokens)
    return tuple(
        LedgerRow(*key, tokens=sum(tokens), calls=len(tokens))
        for key, tokens in sorted(rows.items(), key=lambda entry: tuple(map(str, entry[0])))
    )


def _problems(case: Case) -> tuple[str, ...]:
    if case.no_policy:
        return tuple(dict.fromkeys(case.reading.problems))
    attempt_id, group = case.attempt_id, case.group
    names = {case.rollout_id, attempt_id, None if group is None else group.group_id} - {None}
    wanted = [re.compile(rf"(?<!\S){re.escape(name)}(?!\w)") for name in names if name]  # r1 does not match r10
    if case.judged.partial:  # the step had more than is stored now, so the build's problems are not the step's
        return tuple(dict.fromkeys(case.reading.problems))
    about = [text for text in case.judged.build.problems if any(one.search(text) for one in wanted)]
    return tuple(dict.fromkeys((*case.reading.problems, *about)))


def _tokens(calls: Sequence[ExplainedCall]) -> int:
    return sum(len(call.node.call.response_ids) for call in calls)
