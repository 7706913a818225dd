"""The credit schemes that need a critic, run where the critic is: rewards of turns and values of tokens to advantages.

A turn is a transition; what follows what is ``Segment.follows``, and where several turns follow one (a fork) values and
advantages are means over the branches. The formulas and their sources are in ``credit/gae_*.py``; what they give are
the advantages, which nothing whitens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.credit.gae_bilevel import bilevel_gae
from lightning_trainer.credit.gae_tokens import token_gae
from lightning_trainer.credit.gae_turns import turn_gae
from lightning_trainer.credit.returns import leaves_first
from lightning_trainer.credit.settings import CreditSettings, GaeBilevelCredit, GaeTokensCredit, GaeTurnsCredit
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.update.estimate import Estimate
from lightning_trainer.training.update.tensors import TokenValues
from lightning_trainer.types import Sample, Segment


@dataclass(frozen=True, slots=True)
class _Turn:
    sample_id: str
    segment: Segment
    positions_L: Sequence[int]
    """Of the turn's trained tokens in the sample."""
    rewards_L: list[float]
    """What the turn earned is on its last token; penalties are on theirs."""
    values_L: list[float]


def value_estimate(
    samples: Sequence[Sample], values: TokenValues, penalties: TokenValues | None, scheme: CreditSettings
) -> Estimate:
    """Return advantages, and what the critic should have said.

    Args:
        samples: the credits of their segments are rewards.
        values: the critic's, before each token.
        penalties: taken off the reward at each token; None is none.

    Raises:
        TrainingError: a segment has no credit.
    """
    estimate = Estimate.empty(samples)
    by_agent: dict[tuple[str, str], list[_Turn]] = {}
    for sample in samples:
        for segment in sample.segments:
            taken_off = None if penalties is None else penalties[sample.sample_id]
            turn = _turn(sample, segment, values[sample.sample_id], taken_off)
            by_agent.setdefault((sample.attempt_id, sample.agent), []).append(turn)
    for turns_K in by_agent.values():
        index_of = {turn.segment.transition_id: index for index, turn in enumerate(turns_K)}
        parents = [index_of.get(turn.segment.follows or "") for turn in turns_K]
        advantages_KL, targets_KL = _FORMULAS[type(scheme)](turns_K, parents, scheme)
        for turn, advantages_L, targets_L in zip(turns_K, advantages_KL, targets_KL, strict=True):
            for position, advantage, target in zip(turn.positions_L, advantages_L, targets_L, strict=True):
                estimate.advantages[turn.sample_id][position] = advantage
                estimate.returns[turn.sample_id][position] = target or 0.0
                estimate.return_masks[turn.sample_id][position] = int(target is not None)
    return estimate


def _turn(sample: Sample, segment: Segment, values: Sequence[float], penalties: Sequence[float] | None) -> _Turn:
    if segment.credit is None:
        raise TrainingError(f"sample {sample.sample_id}: transition {segment.transition_id} has no reward; drop it")
    positions_L = sample.trained_in(segment)
    rewards_L = [0.0] * len(positions_L)
    rewards_L[-1] = segment.credit
    if penalties is not None:
        taken_off = [penalties[position] for position in positions_L]
        rewards_L = [reward - penalty for reward, penalty in zip(rewards_L, taken_off, strict=True)]
    return _Turn(sample.sample_id, segment, positions_L, rewards_L, [values[position] for position in positions_L])


_Parents = Sequence[int | None]
_Rows = tuple[list[list[float]], list[list[float | None]]]
"""Advantages and targets of the critic, one list a turn; a target is None where the scheme has none."""


def _turns(turns_K: Sequence[_Turn], parents: _Parents, scheme: GaeTurnsCredit) -> _Rows:
    """The critic learns the state that a turn was taken in: the value before its first token."""
    values_K = [turn.values_L[0] for turn in turns_K]
    rewards_K = [sum(turn.rewards_L) for turn in turns_K]
    advantages_K = turn_gae(parents, rewards_K, values_K, gamma=scheme.gamma, lam=scheme.lam)
    lengths = [len(turn.values_L) for turn in turns_K]
    return (
        [[advantage] * length for advantage, length in zip(advantages_K, lengths, strict=True)],
        [
            [advantage + value, *[None] * (length - 1)]
            for advantage, value, length in zip(advantages_K, values_K, lengths, strict=True)
        ],
    )


def _tokens(turns_K: Sequence[_Turn], parents: _Parents, scheme: GaeTokensCredit) -> _Rows:
    """Turns in an order in which what follows one is known before it; its last token is followed by their first."""
    branches = [parents.count(index) for index in range(len(parents))]
    next_value, next_advantage = [0.0] * len(parents), [0.0] * len(parents)
    advantages_KL: list[list[float]] = [[] for _ in turns_K]
    for index in leaves_first(parents):
        turn = turns_K[index]
        advantages_KL[index] = token_gae(
            turn.rewards_L,
            turn.values_L,
            [1] * len(turn.values_L),
            gamma=scheme.gamma,
            lam=scheme.lam,
            next_value=next_value[index],
            next_advantage=next_advantage[index],
        )
        parent = parents[index]
        if parent is not None:
            next_value[parent] += turn.values_L[0] / branches[parent]
            next_advantage[parent] += advantages_KL[index][0] / branches[parent]
    return advantages_KL, _targets(turns_K, advantages_KL)


def _bilevel(turns_K: Sequence[_Turn], parents: _Parents, scheme: GaeBilevelCredit) -> _Rows:
    advantages_KL = bilevel_gae(
        [sum(turn.rewards_L) for turn in turns_K],
        [turn.values_L for turn in turns_K],
        gamma_turn=scheme.gamma_turn,
        lam_turn=scheme.lam_turn,
        gamma_token=scheme.gamma_token,
        lam_token=scheme.lam_token,
        parents=parents,
    )
    return advantages_KL, _targets(turns_K, advantages_KL)


def _targets(turns_K: Sequence[_Turn], advantages_KL: Sequence[Sequence[float]]) -> list[list[float | None]]:
    return [
        [advantage + value for advantage, value in zip(advantages_L, turn.values_L, strict=True)]
        for turn, advantages_L in zip(turns_K, advantages_KL, strict=True)
    ]


_FORMULAS: Mapping[type[CreditSettings], Callable[..., _Rows]] = {
    GaeTurnsCredit: _turns,
    GaeTokensCredit: _tokens,
    GaeBilevelCredit: _bilevel,
}
