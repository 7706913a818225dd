"""From what was recorded to what is trained: the whole way from calls, attempts, and evaluations to one batch.

A pure function of the set of its inputs: order of arrival and re-delivery have no effect on samples, ids or ledger.
The ledger is balanced against the samples before a batch leaves this module (promise 1).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter

from lightning_trainer.bulk_objects import without_garbage_collection
from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples import problems
from lightning_trainer.samples.best_of_n import as_the_model_itself, choose_imitated
from lightning_trainer.samples.credit.assignment import Assignment
from lightning_trainer.samples.credit.group_collector import regroup
from lightning_trainer.samples.credit.groups import GroupSummary
from lightning_trainer.samples.group_credit import Baselines, JudgedGroup, judge_groups, read_baselines
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.rewards.reward_table import RewardTable, read_rewards
from lightning_trainer.samples.transitions.causes import with_causes
from lightning_trainer.samples.transitions.deduplication import by_trace, deduplicate
from lightning_trainer.samples.transitions.eligibility import (
    KeptImages,
    reason_against,
    took_part,
    with_names,
    with_trusted,
)
from lightning_trainer.samples.transitions.ledger import CallOutcome, Ledger
from lightning_trainer.samples.transitions.length_limit import Limit, chosen
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.samples.transitions.sequences import samples_of
from lightning_trainer.samples.transitions.trajectories import trajectories_of
from lightning_trainer.types import (
    Attempt,
    AttemptState,
    Call,
    Credit,
    Evaluation,
    LedgerRow,
    Outcome,
    RolloutMode,
    Sample,
    TrainingBatch,
    Trajectory,
)


@dataclass(frozen=True, slots=True)
class Build:
    """A batch and the account of everything that did and did not get into it."""

    batch: TrainingBatch | None
    """None when there is nothing to train on; the groups and the ledger say why."""
    ledger: tuple[LedgerRow, ...]
    groups: tuple[GroupSummary, ...]
    """By group id."""
    problems: tuple[str, ...]
    """One sentence each, for people."""
    unscored: frozenset[str] = field(default=frozenset())
    """Attempts in which something cannot be trained because a reward is missing."""
    call_outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    """By call id: the ledger, call by call."""
    rewards: RewardTable = field(default_factory=lambda: RewardTable({}, {}, ()))
    """Which rewards were given to which attempts, agents, and calls."""
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    """By the name of the reward: how judges were corrected."""
    deviation_floor: float = 0.0
    """Groups whose rewards deviate less were left out."""
    calls: tuple[Call, ...] = ()
    """Calls of the policy's agents in the attempts, each once, trained or not."""


@without_garbage_collection()
def build_batch(
    calls: Sequence[Call],
    attempts: Sequence[Attempt],
    evaluations: Sequence[Evaluation],
    policy: PolicyConfig,
    step: int,
    span_parents: Mapping[str, str] | None = None,
    versions: Container[int] | None = None,
    vocabulary: int | None = None,
    corrections: Mapping[str, Correction] | None = None,
    deviation_floor: float = 0.0,
    images: KeptImages | None = None,
) -> Build:
    """Build the batch of one step.

    Args:
        calls: all that were recorded, of any agent, in any order, repeated or not.
        attempts: the step consumes these; running, evaluation and baseline attempts among them are not trained.
        evaluations: all that were recorded.
        policy: the one to train.
        step: number of the step, from 1.
        span_parents: parent of every span, by id (``transitions.causes.span_parents``); only for causal credit, which
            knows no span above the calls' own parents without it.
        versions: of the policy; calls that another one sampled are stale (``max_staleness``). None: of any.
        vocabulary: number of entries in the model's; ids beyond it would make every try of the step fail. None: not
            checked.
        corrections: by the name of the reward, for judges whose errors are taken off.
        deviation_floor: groups whose rewards deviate less are left out (``algorithm.deviation_floor``).
        images: which images are kept, for a model that sees; None: not checked.

    Raises:
        LedgerImbalanceError: the result does not account for every sampled token exactly once (a defect).
    """
    ledger = Ledger()
    kept, repeated = _received(calls, policy, ledger)
    attempt_of = {one.attempt_id: one for one in regroup(_latest(attempts), kept, policy)}
    rewards = read_rewards(evaluations, kept, attempt_of, policy.reward_weights, repeated, corrections, policy.claims)
    eligible, gaps = _eligible(kept, policy, attempt_of, ledger, versions, vocabulary, images)
    trajectories = trajectories_of(
        eligible.values(), attempt_of, rewards.of_attempts, rewards.of_calls, rewards.of_agents, gaps
    )
    if policy.credit.needs_causes:
        trajectories = with_causes(trajectories, kept, span_parents or {})
    limit = Limit(policy.max_sample_tokens, policy.over_length)
    baselines = _baselines(attempt_of.values(), rewards, policy)
    groups = judge_groups(
        _trainable(attempt_of.values()),
        _by_group(trajectories),
        _agents_by_attempt(kept, policy),
        rewards,
        baselines,
        limit,
        policy,
        deviation_floor,
    )
    samples: list[Sample] = []
    for group in groups:
        samples += _settle_and_sample(group, eligible, limit, ledger, baselines, policy)
    rows = ledger.balance(samples)
    unscored = baselines.unscored | _lacking_rewards(groups, eligible)
    return Build(
        batch=TrainingBatch(policy=policy.name, step=step, samples=tuple(samples)) if samples else None,
        ledger=rows,
        groups=tuple(group.summary for group in groups),
        problems=(
            *problems.unclaimed(kept, policy),
            *problems.answered_by_others(kept, policy),
            *problems.unscored(unscored, evaluations, policy),
            *problems.unused(rewards, eligible, policy),
            *problems.absent_agents(rewards, kept),
            *rewards.problems,
            *rewards.incomplete.values(),
            *problems.refusals(group.summary for group in groups),
            *problems.stale((group.summary for group in groups), rows, policy),
            *problems.unused_calls(rows, policy),
            *problems.unknown_sampling(kept, ledger.call_outcomes),
        ),
        unscored=unscored,
        call_outcomes=ledger.call_outcomes,
        rewards=rewards,
        corrections=corrections or {},
        deviation_floor=deviation_floor,
        calls=(*eligible.values(), *gaps),
    )


_OUTCOMES = {
    Reason.SAMPLED: Outcome.TRAINED,
    Reason.ZERO_VARIANCE_GROUP: Outcome.MASKED,
    Reason.LOW_VARIANCE_GROUP: Outcome.MASKED,
    Reason.NOT_PICKED: Outcome.MASKED,
    Reason.NO_CHOICE: Outcome.MASKED,
    Reason.TRUNCATED: Outcome.MASKED,
}
"""By the reason that was decided on for a call or for its group; all other reasons drop the call."""


def _received(
    calls: Sequence[Call], policy: PolicyConfig, ledger: Ledger
) -> tuple[Sequence[Call], Sequence[tuple[Call, Call]]]:
    """Enter every call in the ledger and settle the repeated ones.

    Returns:
        One call for each response, and the repeated ones, each with the call that is kept in its place.
    """
    named = sorted(with_trusted(with_names(calls, policy), policy), key=by_trace)
    for call in named:
        ledger.receive(call)
    deliveries = deduplicate(named)
    for repeat, _ in deliveries.repeated:
        ledger.settle(repeat, Outcome.DEDUPLICATED, Reason.DELIVERED_TWICE)
    return deliveries.kept, deliveries.repeated


def _eligible(
    calls: Iterable[Call],
    policy: PolicyConfig,
    attempts: Mapping[str, Attempt],
    ledger: Ledger,
    versions: Container[int] | None,
    vocabulary: int | None,
    images: KeptImages | None,
) -> tuple[dict[str, Call], list[Call]]:
    """Return the calls that can be trained, by id, and those that cannot be but that credit flows across.

    Every call that cannot be trained is settled with the reason against it.
    """
    eligible: dict[str, Call] = {}
    gaps: list[Call] = []
    claims = cache(policy.claims)
    imitates = policy.algorithm.objective != "rl"
    for call in calls:
        reason = reason_against(call, policy, attempts, versions, claims, vocabulary, images)
        if reason is None:
            eligible[call.call_id] = as_the_model_itself(call) if imitates else call
        else:
            ledger.settle(call, _OUTCOMES.get(reason, Outcome.DROPPED), reason)
            if took_part(call, attempts, policy, claims):
                gaps.append(call)
    return eligible, gaps


def _baselines(attempts: Iterable[Attempt], rewards: RewardTable, policy: PolicyConfig) -> Baselines:
    """Return the baselines of the groups; none if the algorithm compares attempts with each other."""
    return read_baselines(attempts, rewards.of_attempts) if policy.algorithm.needs_baseline else Baselines()


def _settle_and_sample(
    group: JudgedGroup,
    eligible: Mapping[str, Call],
    limit: Limit,
    ledger: Ledger,
    baselines: Baselines,
    policy: PolicyConfig,
) -> Sequence[Sample]:
    """Settle every eligible call of a group; return its samples, none if the verdict is against the group."""
    sampled = group.summary.verdict is Reason.SAMPLED
    imitated = None
    if sampled and policy.algorithm.objective != "rl":
        imitated = choose_imitated(policy.algorithm, group.members)
    credits = _settle_group(group.assignment, group.summary, eligible, limit, ledger, imitated)
    if not sampled:
        return ()
    return samples_of(
        group.trajectories,
        credits,
        limit,
        policy.samples,
        baseline=baselines.of_groups.get(group.summary.group_id),
        passed_on=group.assignment.passed_on,
    )


def _lacking_rewards(groups: Iterable[JudgedGroup], eligible: Mapping[str, Call]) -> frozenset[str]:
    """Return the attempts of calls that were refused because a reward is missing."""
    return frozenset(
        attempt_id
        for group in groups
        for call_id, reason in group.assignment.refused.items()
        if reason is Reason.NO_REWARD and (attempt_id := eligible[call_id].attempt_id) is not None
    )


def _settle_group(
    assignment: Assignment,
    summary: GroupSummary,
    eligible: Mapping[str, Call],
    limit: Limit,
    ledger: Ledger,
    imitated: Mapping[str, float] | None,
) -> Mapping[str, Credit]:
    """Settle every eligible call of a group; return the credits of those that are trained if the group is trained.

    Args:
        imitated: credit by attempt id, if only these attempts are trained; None: all that have peers to be compared
            with are.
    """
    compared, why_not = assignment.credits, Reason.NO_PEERS
    if summary.unpaired and summary.verdict in _OUTCOMES:
        compared = {
            call_id: credit
            for call_id, credit in compared.items()
            if (eligible[call_id].agent, credit.peers) not in summary.unpaired
        }
    if imitated is not None:
        why_not = Reason.NOT_PICKED
        compared = {
            call_id: replace(credit, value=imitated[attempt_id])
            for call_id, credit in assignment.credits.items()
            if (attempt_id := eligible[call_id].attempt_id) is not None and attempt_id in imitated
        }
    for call_id in assignment.credits:
        verdict = summary.verdict if call_id in compared else why_not
        _settle_call(eligible[call_id], verdict, limit, ledger)
    for call_id, reason in assignment.refused.items():
        _settle_call(eligible[call_id], reason, limit, ledger)
    return compared


def _settle_call(call: Call, reason: Reason, limit: Limit, ledger: Ledger) -> None:
    """Settle all tokens of a call; those that are cut or were sampled without a choice are settled separately."""
    outcome, sampled = _OUTCOMES.get(reason, Outcome.DROPPED), len(call.response_ids)
    if reason not in (Reason.SAMPLED, Reason.NO_CHOICE) or (limit.over_length == "drop" and call.support is None):
        ledger.settle(call, outcome, reason)
        return
    kept = limit.trainable(call)
    trained = chosen(call, kept) if reason is Reason.SAMPLED else 0
    if kept < sampled:
        ledger.settle(call, Outcome.DROPPED, Reason.CUT, sampled - kept)
    if trained < kept:
        ledger.settle(call, Outcome.MASKED, Reason.NO_CHOICE, kept - trained)
    if trained:
        ledger.settle(call, outcome, reason, trained)


def _latest(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return one record for each attempt: the one that knows most."""
    return list({one.attempt_id: one for one in sorted(attempts, key=_latest_knowledge_last)}.values())


def _latest_knowledge_last(attempt: Attempt) -> tuple:
    """Order records of one attempt: what is known once it has ended replaces what was known before."""
    ended = attempt.state is not AttemptState.RUNNING
    return (attempt.attempt_id, ended, attempt.ended_ns or 0, attempt.started_ns, repr(attempt))


def _trainable(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    by_group: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.mode is RolloutMode.TRAIN and attempt.state is not AttemptState.RUNNING:
            by_group.setdefault(attempt.group_id, []).append(attempt)
    return by_group


def _by_group(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_group.setdefault(trajectory.attempt.group_id, []).append(trajectory)
    return by_group


def _agents_by_attempt(calls: Iterable[Call], policy: PolicyConfig) -> dict[str, frozenset[str]]:
    """Return which of the policy's agents made calls in each attempt, usable or not."""
    agents_by_attempt: dict[str, set[str]] = {}
    for attempt_id, agent in set(map(attrgetter("attempt_id", "agent"), calls)):
        if attempt_id is not None and agent is not None:
            agents_by_attempt.setdefault(attempt_id, set()).add(agent)
    return {attempt_id: frozenset(filter(policy.claims, agents)) for attempt_id, agents in agents_by_attempt.items()}
