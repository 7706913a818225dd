"""Live rollouts as a canary compares them: the version that answered, its reward, and what went wrong."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.rewards.reward_table import read_outcomes
from lightning_trainer.types import Attempt, AttemptState, Call, Span, SpanStatus
from lightning_trainer.versions.held_out import only_version
from lightning_trainer.versions.sequential import Comparison, Decision, bounds, compare, counted, is_below

_REFUSALS = frozenset({"refusal", "content_filter"})
_FEWEST_BEFORE = 20
"""Minimum number of earlier rollouts from which the limits for long and slow are computed."""


@dataclass(frozen=True, slots=True)
class LiveRollout:
    """One ended attempt whose calls to the policy were all answered by one version."""

    version: int
    reward: float | None
    failed: bool
    tool_errors: bool
    refused: bool
    tokens: int
    """Sampled by the version."""
    seconds: float
    """Total duration of its answers."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The limits that 19 of 20 rollouts before the candidate did not exceed; infinite if too few are known."""

    tokens: float = math.inf
    seconds: float = math.inf


def read_rollouts(attempts: Sequence[Attempt], spans: Sequence[Span], policy: PolicyConfig) -> dict[str, LiveRollout]:
    """Return, by id, the attempts that a single version answered; other attempts are evidence for no version."""
    reading = read_spans(spans)
    known = {attempt.attempt_id: attempt for attempt in attempts}
    rewards = read_outcomes(reading.evaluations, reading.calls, known, policy)
    calls: dict[str, list[Call]] = {}
    for call in reading.calls:
        if call.attempt_id in known and call.policy == policy.name:
            calls.setdefault(call.attempt_id, []).append(call)
    erred = {
        span.attributes.get(semconv.ATTEMPT_ID)
        for span in spans
        if span.attributes.get(semconv.OPERATION) == semconv.EXECUTE_TOOL and span.status is SpanStatus.ERROR
    }
    found: dict[str, LiveRollout] = {}
    for attempt_id, own in calls.items():
        if (version := only_version(own)) is not None:
            found[attempt_id] = LiveRollout(
                version=version,
                reward=rewards.get(attempt_id),
                failed=known[attempt_id].state is AttemptState.FAILED,
                tool_errors=attempt_id in erred,
                refused=any((call.finish_reason or "").lower() in _REFUSALS for call in own),
                tokens=sum(len(call.response_ids) for call in own),
                seconds=sum(call.end_ns - call.start_ns for call in own) / 1e9,
            )
    return found


def usual(rollouts: Sequence[LiveRollout]) -> Usual:
    """Return the limits for long and slow answers, from the rollouts before the candidate."""
    if len(rollouts) < _FEWEST_BEFORE:
        return Usual()
    place = math.ceil(0.95 * len(rollouts)) - 1
    return Usual(sorted(float(one.tokens) for one in rollouts)[place], sorted(one.seconds for one in rollouts)[place])


def harms(rollout: LiveRollout, before: Usual) -> dict[str, bool]:
    """Return what went wrong with a rollout, whatever its reward."""
    return {
        "failed": rollout.failed,
        "tool errors": rollout.tool_errors,
        "refusals": rollout.refused,
        "long answers": rollout.tokens > before.tokens,
        "slow answers": rollout.seconds > before.seconds,
    }


@dataclass(frozen=True, slots=True)
class Finding:
    """The current evidence on a candidate."""

    comparison: Comparison
    """With means and bounds on the scale of the rewards."""
    decision: Decision
    reason: str | None
    """Why the candidate does not go live; None if it does, or nothing is decided."""
    harms: Mapping[str, tuple[float, float]]
    """By kind of harm: its share of the candidate's rollouts, and of the live version's."""
    rollouts: tuple[int, int]
    """The numbers of ended rollouts of the candidate and of the live version."""
    range: tuple[float, float]
    """The lowest and the highest reward."""

    def evidence(self) -> dict[str, Any]:
        """Return the finding as values that JSON can hold."""
        return {
            "rollouts": list(self.rollouts),
            "rewards": [self.comparison.candidate.count, self.comparison.live.count],
            "means": [self.comparison.candidate.mean, self.comparison.live.mean],
            "candidate": [self.comparison.candidate.low, self.comparison.candidate.high],
            "live": [self.comparison.live.low, self.comparison.live.high],
            "range": list(self.range),
            "harms": {name: list(shares) for name, shares in self.harms.items()},
        }


def judge_candidate(
    rollouts: Iterable[LiveRollout], candidate: int, live: int, config: CanaryConfig, before: Usual
) -> Finding:
    """Decide on a candidate given the current evidence; call it again whenever a rollout has ended or got a reward."""
    new, old = [], []
    for one in rollouts:
        if one.version in (candidate, live):
            (new if one.version == candidate else old).append(one)
    error = 1 - config.confidence
    comparison = compare(
        counted((one.reward for one in new if one.reward is not None), config.range),
        counted((one.reward for one in old if one.reward is not None), config.range),
        share=config.share,
        error=error,
        tolerance=config.tolerance,
        most=config.max_rollouts,
    )
    decision = comparison.decision
    comparison = Comparison(comparison.candidate.on(config.range), comparison.live.on(config.range), decision)
    of_new, of_old = ([harms(one, before) for one in group] for group in (new, old))
    shares: dict[str, tuple[float, float]] = {}
    worst: str | None = None
    for name in harms(LiveRollout(0, None, False, False, False, 0, 0.0), before):
        ours, theirs = (Counter(float(one[name]) for one in group) for group in (of_new, of_old))
        shares[name] = (ours[1.0] / max(1, len(new)), theirs[1.0] / max(1, len(old)))
        # The five checks each get a fifth of the error.
        if is_below(theirs, ours, share=1 - config.share, error=error / 5, by=config.guard_margin):
            ours_share, theirs_share = shares[name]
            worst = worst or f"{name} in {ours_share:.0%} of its rollouts, the live version in {theirs_share:.0%}"
    reason = None
    if worst is not None:
        decision, reason = Decision.REFUSED, f"its canary has {worst}"
    elif decision is Decision.REFUSED:
        reason = f"its canary is worse: {_means(comparison)}"
    elif decision is Decision.STOPPED:
        reason = f"its canary is undecided after max_rollouts = {config.max_rollouts}: {_means(comparison)}"
    return Finding(comparison, decision, reason, shares, (len(new), len(old)), config.range)


# A candidate in shadow mode answers the same calls as the live version, so the difference within each pair is tested,
# which cancels the rollout's difficulty. The mean of the differences has a confidence sequence like any mean.


def judge_shadow(pairs: Iterable[tuple[LiveRollout, LiveRollout]], config: CanaryConfig, before: Usual) -> Finding:
    """Decide on a candidate in shadow mode; call it again whenever there is new evidence.

    Args:
        pairs: the candidate's and the live version's results for the same rollout.
    """
    pairs, error = list(pairs), 1 - config.confidence
    low, high = config.range
    rewarded = [(new.reward, old.reward) for new, old in pairs if new.reward is not None and old.reward is not None]
    new_rewards, old_rewards = ([pair[place] for pair in rewarded] for place in (0, 1))
    scaled = [[min(1.0, max(0.0, (one - low) / (high - low))) for one in pair] for pair in rewarded]
    apart = bounds(counted((1 + new - old) / 2 for new, old in scaled), error)
    decision = Decision.GOING_ON
    if apart.high < 0.5:
        decision = Decision.REFUSED
    elif apart.low > 0.5 - config.tolerance / 2:
        decision = Decision.PROMOTED
    elif len(rewarded) >= config.max_rollouts:
        decision = Decision.STOPPED
    comparison = Comparison(
        bounds(counted(new_rewards, config.range), error / 2).on(config.range),
        bounds(counted(old_rewards, config.range), error / 2).on(config.range),
        decision,
    )
    shares: dict[str, tuple[float, float]] = {}
    worst: str | None = None
    told = [(harms(new, before), harms(old, before)) for new, old in pairs]
    for name in ("refusals", "long answers", "slow answers"):  # its tool calls are not run, so no tool can fail
        ours, theirs = ([float(pair[place][name]) for pair in told] for place in (0, 1))
        shares[name] = (sum(ours) / max(1, len(told)), sum(theirs) / max(1, len(told)))
        more = bounds(counted((1 + new - old) / 2 for new, old in zip(ours, theirs, strict=True)), error / 3)
        if more.low > 0.5 + config.guard_margin / 2:
            worst = (
                worst or f"{name} in {shares[name][0]:.0%} of its rollouts, the live version in {shares[name][1]:.0%}"
            )
    reason = None
    if worst is not None:
        decision, reason = Decision.REFUSED, f"its canary has {worst}"
    elif decision is Decision.REFUSED:
        reason = f"its canary is worse: {_means(comparison)}"
    elif decision is Decision.STOPPED:
        reason = f"its canary is undecided after max_rollouts = {config.max_rollouts}: {_means(comparison)}"
    return Finding(comparison, decision, reason, shares, (len(pairs), len(pairs)), config.range)


def _means(comparison: Comparison) -> str:
    new, old = comparison.candidate, comparison.live
    return f"mean {new.mean:.3f} of {new.count} rollouts, of the live version {old.mean:.3f} of {old.count}"
