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
"""Credit of what is imitated, and of what a pair sets it against."""


def judge_best(algorithm: AlgorithmConfig, members: Sequence[Member], summary: GroupSummary) -> GroupSummary:
    """Return the summary of a group; dropped when its best attempt did not earn what a demonstration must.

    Attempts may have earned the same though their agents did not, as in a game with a winner and a loser: then none is
    the best, and one attempt set against itself would be no pair.
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
    """Return ``IMITATED`` or ``AVOIDED`` by attempt id, for those of a group that are trained.

    Args:
        members: of a group whose verdict is ``SAMPLED``. Of equal ones the first by attempt id counts.
    """
    members = sorted((m for m in members if m.row_credits), key=lambda member: member.attempt.attempt_id)
    best = max(members, key=_earned)
    if algorithm.objective == "sft":
        return {best.attempt.attempt_id: IMITATED}
    worst = min(members, key=_earned)
    return {worst.attempt.attempt_id: AVOIDED, best.attempt.attempt_id: IMITATED}


def _earned(member: Member) -> float:
    """By the terminal scheme a row's credit is the reward of the attempt and of its agent in it."""
    return fmean(value for values in member.row_credits.values() for value in values)


def as_the_model_itself(call: Call) -> Call:
    """Return a call to be imitated: what is shown is learned by the model itself, not by what it was sampled with.

    So a token that a grammar left no choice about is learned like any other: the model had one.
    """
    return replace(call, temperature=1.0, shaping=None, support=None, routed_experts=None)
