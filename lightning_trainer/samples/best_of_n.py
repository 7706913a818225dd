"""Which attempts of a live group are imitated: the best one (``sft``), or the best and the worst (``dpo``).

Sources: best of n, Dong et al., RAFT (arXiv 2304.06767), section 3; the best against the worst as a pair of whole
attempts, Song et al., Trial and Error (arXiv 2403.02502), section 3.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.samples.credit.groups import GroupSummary, Member, all_equal
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call

IMITATED, AVOIDED = 1.0, -1.0
"""Credit of the attempt that is imitated, and of the one that a pair sets against it."""


def judge_best(algorithm: AlgorithmConfig, members: Sequence[Member], summary: GroupSummary) -> GroupSummary:
    """Return the summary of a group; dropped if its best attempt earned less than a demonstration must.

    Attempts may have earned the same although their agents did not, as in a game with a winner and a loser: then no
    attempt is the best, and a pair would set one attempt against itself.
    """
    if algorithm.objective == "rl" or summary.verdict is not Reason.SAMPLED:
        return summary
    earned = [_earned(member) for member in members if member.row_credits]
    summary = replace(summary, flat=all_equal(earned))
    if summary.flat and (algorithm.objective == "dpo" or algorithm.drop_zero_variance_groups):
        return replace(summary, verdict=Reason.ZERO_VARIANCE_GROUP)
    least = algorithm.sft.min_reward
    if algorithm.objective != "sft" or least is None or max(earned) >= least:
        return summary
    return replace(summary, verdict=Reason.LOW_REWARD)


def choose_imitated(algorithm: AlgorithmConfig, members: Sequence[Member]) -> Mapping[str, float]:
    """Return ``IMITATED`` or ``AVOIDED`` by attempt id, for the attempts of a group that are trained.

    Args:
        members: of a group whose verdict is ``SAMPLED``. Among equal ones, the first by attempt id counts.
    """
    members = sorted((m for m in members if m.row_credits), key=lambda member: member.attempt.attempt_id)
    best = max(members, key=_earned)
    if algorithm.objective == "sft":
        return {best.attempt.attempt_id: IMITATED}
    worst = min(members, key=_earned)
    return {worst.attempt.attempt_id: AVOIDED, best.attempt.attempt_id: IMITATED}


def _earned(member: Member) -> float:
    """Return an attempt's mean row credit: under the terminal scheme, its reward plus the agent's own."""
    return fmean(value for values in member.row_credits.values() for value in values)


def as_the_model_itself(call: Call) -> Call:
    """Return a call to imitate as if the model itself had sampled it, without what shaped its sampling.

    So a token that a grammar left no choice about is learned like any other: the model itself had a choice.
    """
    return replace(call, temperature=1.0, shaping=None, support=None, routed_experts=None)
