"""The credit schemes that need a critic, run where the critic is: rewards of turns and values of tokens to advantages.

A turn is a transition of one agent in one attempt, in whichever sample it is; ``Segment.follows`` says which turn it
follows, and if several turns follow one (a fork), values and advantages are means over the branches. Turns that are not
trained (``Sample.gaps``) have no values and pass on what follows them. The formulas and their sources are in
``samples/credit/schemes/critic/gae.py``; their results are the advantages, which are not whitened.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.config.policies.credit import CreditSettings, GaeBilevelCredit, GaeTokensCredit, GaeTurnsCredit
from lightning_trainer.errors import TrainingError
from lightning_trainer.samples.credit.schemes.critic.gae import bilevel_gae, token_gae, turn_gae
from lightning_trainer.samples.credit.schemes.returns import leaves_first
from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.training.update.estimation.advantages import Estimate
from lightning_trainer.types import Gap, Sample, Segment


@dataclass(frozen=True, slots=True)
class _Turn:
    transition_id: str
    follows: str | None
    rewards_L: list[float]
    """Of its trained tokens: what the turn earned is on the last one, penalties are on the tokens that they are for.
    One entry, and no values, if no token is trained."""
    values_L: list[float]
    sample_id: str = ""
    places_L: tuple[int, ...] = ()
    """Places of its trained tokens in the sample."""


def value_estimate(
    samples: Sequence[Sample], values: TokenValues, penalties: TokenValues | None, scheme: CreditSettings
) -> Estimate:
    """Return advantages, and what the critic should have said.

    Args:
        samples: the credits of their segments are rewards.
        values: the critic's, before each token.
        penalties: taken off the reward at each token; None: none are.

    Raises:
        TrainingError: a segment has no credit.
    """
    estimate = Estimate.empty(samples)
    by_agent: dict[tuple[str, str], list[_Turn]] = {}
    for sample in samples:
        taken_off = None if penalties is None else penalties[sample.sample_id]
        for segment in sample.segments:
            turn = _turn(sample, segment, values[sample.sample_id], taken_off)
            by_agent.setdefault(_owner(sample, segment), []).append(turn)
        for gap in sample.gaps:
            turn = _Turn(gap.transition_id, gap.follows, [gap.credit], [])
            by_agent.setdefault(_owner(sample, gap), []).append(turn)
    for turns_K in by_agent.values():
        index_of = {turn.transition_id: index for index, turn in enumerate(turns_K)}
        parents = [index_of.get(turn.follows or "") for turn in turns_K]
        advantages_KL, targets_KL = _FORMULAS[type(scheme)](turns_K, parents, scheme)
        for turn, advantages_L, targets_L in zip(turns_K, advantages_KL, targets_KL, strict=True):
            for place, advantage, target in zip(turn.places_L, advantages_L, targets_L, strict=True):
                estimate.advantages[turn.sample_id][place] = advantage
                estimate.returns[turn.sample_id][place] = target or 0.0
                estimate.return_masks[turn.sample_id][place] = int(target is not None)
    return estimate


def _owner(sample: Sample, part: Segment | Gap) -> tuple[str, str]:
    """Return the attempt and agent of a turn: a sample of a token tree holds turns of several."""
    return (part.attempt_id or sample.attempt_id, part.agent or sample.agent)


def _turn(sample: Sample, segment: Segment, values: Sequence[float], penalties: Sequence[float] | None) -> _Turn:
    if segment.credit is None:
        raise TrainingError(f"sample {sample.sample_id}: transition {segment.transition_id} has no reward; drop it")
    places_L = tuple(sample.trained_in(segment))
    rewards_L = [0.0] * max(len(places_L), 1)
    rewards_L[-1] = segment.credit
    if penalties is not None:
        for index, place in enumerate(places_L):
            rewards_L[index] -= penalties[place]
    values_L = [values[place] for place in places_L]
    return _Turn(segment.transition_id, segment.follows, rewards_L, values_L, sample.sample_id, places_L)


_Parents = Sequence[int | None]
_Rows = tuple[list[list[float]], list[list[float | None]]]
"""Advantages and targets of the critic, one list per turn; a target is None where the scheme has none."""


def _turns(turns_K: Sequence[_Turn], parents: _Parents, scheme: GaeTurnsCredit) -> _Rows:
    """Apply ``turn_gae``; the critic learns the value before a turn's first token, which is that of its state."""
    values_K = [turn.values_L[0] if turn.values_L else None for turn in turns_K]
    rewards_K = [sum(turn.rewards_L) for turn in turns_K]
    advantages_K = turn_gae(parents, rewards_K, values_K, gamma=scheme.gamma, lam=scheme.lam)
    advantages_KL: list[list[float]] = []
    targets_KL: list[list[float | None]] = []
    for turn, advantage, value in zip(turns_K, advantages_K, values_K, strict=True):
        advantages_KL.append([advantage] * len(turn.values_L))
        targets_KL.append([] if value is None else [advantage + value, *[None] * (len(turn.values_L) - 1)])
    return advantages_KL, targets_KL


def _tokens(turns_K: Sequence[_Turn], parents: _Parents, scheme: GaeTokensCredit) -> _Rows:
    """Apply ``token_gae`` to each turn after those that follow it: its last token is followed by their first ones."""
    branches = Counter(parents)
    next_value, next_advantage = [0.0] * len(parents), [0.0] * len(parents)
    advantages_KL: list[list[float]] = [[] for _ in turns_K]
    for index in leaves_first(parents):
        turn = turns_K[index]
        advantages_KL[index] = token_gae(
            turn.rewards_L[: len(turn.values_L)],
            turn.values_L,
            [1] * len(turn.values_L),
            gamma=scheme.gamma,
            lam=scheme.lam,
            next_value=next_value[index],
            next_advantage=next_advantage[index],
        )
        parent = parents[index]
        if parent is None:
            continue
        if turn.values_L:
            value, advantage = turn.values_L[0], advantages_KL[index][0]
        else:  # no time step: what it earned and what follows it arrive in its place
            value, advantage = turn.rewards_L[0] + next_value[index], next_advantage[index]
        next_value[parent] += value / branches[parent]
        next_advantage[parent] += advantage / branches[parent]
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
