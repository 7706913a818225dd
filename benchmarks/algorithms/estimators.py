"""The advantage estimators as their papers write them, one row after the other, in plain PyTorch.

Nothing here comes from verl or from the project. A row is an attempt; ``rewards`` has its reward on its last token,
minus the penalty for divergence at each token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.algorithms.papers import Formula
from benchmarks.algorithms.value_schemes import Gae


@dataclass(slots=True)
class Row:
    group: str
    rewards: torch.Tensor
    baseline: float
    """Reward of the group's greedy attempt."""
    values: torch.Tensor | None = None
    """A critic's values, before each token."""
    energy: torch.Tensor | None = None
    """``1 - 2 p + sum(p^2)`` of the distribution that each token was drawn from."""

    @property
    def score(self) -> torch.Tensor:
        return self.rewards.sum()

    @property
    def returns(self) -> torch.Tensor:
        """Undiscounted returns, from each token on."""
        return self.rewards.flip(0).cumsum(0).flip(0)


def advantages(rows: Sequence[Row], formula: Formula, gae: Gae) -> list[torch.Tensor]:
    """Return one vector a row."""
    if formula.advantage == "gae":
        return _whitened([of_values(row, formula, gae) for row in rows])
    return _ESTIMATORS[formula.advantage](rows, formula)


def of_values(row: Row, formula: Formula, gae: Gae) -> torch.Tensor:
    assert row.values is not None
    return gae(row.rewards, row.values, formula.gamma, formula.lam)


def _of_groups(rows: Sequence[Row], of_group: Callable[[Sequence[Row], torch.Tensor], torch.Tensor]):
    """Apply a function of (rows, scores) to each group, and spread each row's value over its tokens."""
    found: list[torch.Tensor] = [torch.empty(0)] * len(rows)
    for group in {row.group for row in rows}:
        members = [index for index, row in enumerate(rows) if row.group == group]
        values = of_group([rows[index] for index in members], torch.stack([rows[index].score for index in members]))
        for index, value in zip(members, values, strict=True):
            found[index] = value.expand(len(rows[index].rewards))
    return found


def _whitened(vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    flat = torch.cat(list(vectors))
    return [(vector - flat.mean()) / (flat.var() + 1e-8).sqrt() for vector in vectors]


def _grpo(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    def of_group(_: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        centered = scores - scores.mean()
        return centered / (scores.std() + 1e-6) if formula.normalize_by_std else centered

    return _of_groups(rows, of_group)


def _passk(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    def of_group(_: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        ordered = scores.sort(descending=True).values
        lead = (ordered[0] - ordered[1]) / (scores.std() + 1e-6 if formula.normalize_by_std else 1.0)
        return torch.zeros_like(scores).index_fill(0, scores.argmax(), lead.item())

    return _of_groups(rows, of_group)


def _rloo(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    return _of_groups(rows, lambda _, scores: scores - (scores.sum() - scores) / (len(scores) - 1))


def _opo(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    def of_group(members: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([float(len(row.rewards)) for row in members])
        return scores - (lengths * scores).sum() / lengths.sum()

    return _of_groups(rows, of_group)


def _gpg(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    rewarded = sum(bool(row.score != 0) for row in rows)
    return _of_groups(rows, lambda _, scores: len(rows) / max(rewarded, 1) * (scores - scores.mean()))


def _reinforce_plus_plus(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    assert formula.gamma == 1.0
    return _whitened([row.returns for row in rows])


def _reinforce_plus_plus_baseline(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    return _whitened(_of_groups(rows, lambda _, scores: scores - scores.mean()))


def _token_baseline(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    """Subtract at each token the mean return of the group's rows that reach it, weighted by their energy up to there; a
    token that only one row reaches has no baseline."""
    found = [row.returns.clone() for row in rows]
    for group in {row.group for row in rows}:
        members = [index for index, row in enumerate(rows) if row.group == group]
        for t in range(max(len(rows[index].rewards) for index in members)):
            there = [index for index in members if len(rows[index].rewards) > t]
            if len(there) < 2:
                continue
            weights = torch.stack([_energy(rows[index])[: t + 1].sum() for index in there])
            returns = torch.stack([rows[index].returns[t] for index in there])
            for index in there:
                found[index][t] -= (weights * returns).sum() / weights.sum()
    return found


def _energy(row: Row) -> torch.Tensor:
    assert row.energy is not None
    return row.energy


def _scores(rows: Sequence[Row], formula: Formula) -> list[torch.Tensor]:
    return _of_groups(rows, lambda _, scores: scores)


_ESTIMATORS: Mapping[str, Callable[[Sequence[Row], Formula], list[torch.Tensor]]] = {
    "grpo": _grpo,
    "grpo_vectorized": _grpo,
    "grpo_passk": _passk,
    "gdpo": lambda rows, formula: _whitened(_grpo(rows, formula)),
    "rloo": _rloo,
    "rloo_vectorized": _rloo,
    "opo": _opo,
    "gpg": _gpg,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _reinforce_plus_plus_baseline,
    "remax": lambda rows, formula: [row.returns - row.baseline for row in rows],
    "optimal_token_baseline": _token_baseline,
    "tir_optimal_token_baseline": _token_baseline,
    "credit": _scores,
}
