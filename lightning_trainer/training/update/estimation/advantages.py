"""Credits to per-token advantages, by the estimators in verl's registry.

An estimator compares rows. Segments with one row id are one row: their tokens are put one after the other, in the order
in which they were sampled (``Segment.order``), wherever in the batch they are, the row's credit is the reward of its
last token, and what the estimator returns goes back to the tokens it came from. Tokens that are not trained (prompts,
tool output, tokens without a choice) are in no row and get 0. Everything is in double precision, because whitening
divides by small deviations.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import torch
from verl.trainer.config.algorithm import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.policies.estimators import CREDIT, ESTIMATORS, needs_baseline
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.types import Sample


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an estimator gives: by sample id, one value per token."""

    advantages: dict[str, list[float]]
    """0.0 where the loss mask is 0."""
    returns: dict[str, list[float]]
    """What the critic should have said."""
    return_masks: dict[str, list[int]]
    """1 on the trained tokens that the critic learns from."""

    @classmethod
    def empty(cls, samples: Sequence[Sample]) -> "Estimate":
        """Return an estimate of zeros, to be filled in."""
        zeros = [{sample.sample_id: [0.0] * len(sample.token_ids) for sample in samples} for _ in range(2)]
        return cls(*zeros, return_masks={sample.sample_id: [0] * len(sample.token_ids) for sample in samples})


_GIVEN = frozenset(
    {"token_level_rewards", "response_mask", "index", "config", "norm_adv_by_std_in_grpo", "gamma", "lam"}
)
"""What every estimator can be given."""
_MEASURED: Mapping[str | None, frozenset[str]] = {
    "values": frozenset({"values"}),
    "distribution": frozenset({"old_log_probs", "sum_pi_squared"}),
}
"""What is measured at every token for estimators that need it, by their need (``Estimator.needs``)."""
_BASELINES = frozenset({"reward_baselines"})
"""What estimators that need a baseline (``Estimator.needs``) are given for every row."""


@dataclass(slots=True)
class _Row:
    index: tuple[str, str, str]
    """(group id, agent, peers): rows with the same index are compared with each other."""
    credit: float
    baseline: float | None
    """Reward of the group's baseline attempt."""
    pieces: list[tuple[int, int, Sequence[int]]] = field(default_factory=list)
    """(order, sample, positions of a segment's trained tokens), in the order of sampling."""
    attempts: set[str] = field(default_factory=set)

    @property
    def length(self) -> int:
        return sum(len(positions) for *_, positions in self.pieces)

    def gather(self, samples: Sequence[Sample], values: TokenValues, length: int) -> list[float]:
        """Return the values of the row's tokens, one after the other, and 0.0 up to ``length``."""
        found: list[float] = []
        for _, index, positions in self.pieces:
            of_sample = values[samples[index].sample_id]
            found += [of_sample[position] for position in positions]
        return found + [0.0] * (length - len(found))


def token_advantages(
    samples: Sequence[Sample], estimator: str, algorithm: AlgorithmConfig
) -> dict[str, tuple[float, ...]]:
    """Return one advantage per token for every sample id, 0.0 where the loss mask is 0; see ``estimate``."""
    found = estimate(samples, estimator, algorithm)
    return {sample_id: tuple(values) for sample_id, values in found.advantages.items()}


def estimate(
    samples: Sequence[Sample],
    estimator: str,
    algorithm: AlgorithmConfig,
    *,
    measured: Mapping[str, TokenValues] | None = None,
    penalties: TokenValues | None = None,
) -> Estimate:
    """Run an estimator over a batch.

    Args:
        estimator: name in verl's registry; ``credit``: the credits as they are.
        algorithm: ``normalize_by_std``, ``gamma`` and ``lam``, for the estimators that ask.
        measured: values of every token, by verl's names; the estimator gets what it asks for, such as the weights of a
            correction (``rollout_is_weights``).
        penalties: taken off the reward at each token; None: none are.

    Raises:
        TrainingError: the estimator is unknown or needs what the trainer does not have; a group holds fewer than two
            attempts or rows, or lacks the baseline that the estimator needs; a row has no credit, or several.
    """
    rows = _rows(samples)
    _require_groups(rows)
    if estimator == CREDIT:
        advantages_RL, returns_RL = [[row.credit] * row.length for row in rows], None
    else:
        advantages_RL, returns_RL = _estimate(rows, samples, estimator, algorithm, measured or {}, penalties)
    found = Estimate.empty(samples)
    for number, row in enumerate(rows):
        start = 0
        for _, index, positions in row.pieces:
            sample_id = samples[index].sample_id
            for place, position in enumerate(positions, start):
                found.advantages[sample_id][position] = advantages_RL[number][place]
                if returns_RL is not None:
                    found.returns[sample_id][position] = returns_RL[number][place]
                    found.return_masks[sample_id][position] = 1
            start += len(positions)
    return found


def _rows(samples: Sequence[Sample]) -> list[_Row]:
    rows: dict[tuple[str, str, str, str], _Row] = {}
    for index, sample in enumerate(samples):
        for segment in sample.segments:
            if segment.credit is None or not math.isfinite(segment.credit):
                raise TrainingError(
                    f"sample {sample.sample_id}: transition {segment.transition_id} has the credit {segment.credit}; "
                    "a transition without a credit cannot be trained, drop it with a reason"
                )
            compared = (sample.group_id, segment.agent or sample.agent, segment.peers)
            row = rows.setdefault((*compared, segment.row_id), _Row(compared, segment.credit, sample.baseline))
            if row.credit != segment.credit:
                raise TrainingError(
                    f"row {segment.row_id} has the credits {row.credit} and {segment.credit}; a row has one"
                )
            row.pieces.append((segment.order, index, sample.trained_in(segment)))
            row.attempts.add(segment.attempt_id or sample.attempt_id)
    for row in rows.values():
        row.pieces.sort(key=itemgetter(0))
    return list(rows.values())


def _require_groups(rows: Sequence[_Row]) -> None:
    if not rows:
        raise TrainingError("the batch has no token to train")
    attempts: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        attempts.setdefault(row.index, set()).update(row.attempts)
    for (group_id, agent, peers), members in attempts.items():
        if len(members) < 2:
            raise TrainingError(
                f"group {group_id} holds one attempt ({', '.join(members)}) of agent {agent}"
                f"{f' at {peers}' if peers else ''}; advantages compare two or more attempts of the same task, run it "
                "again or raise group_size"
            )


def _estimate(
    rows: Sequence[_Row],
    samples: Sequence[Sample],
    estimator: str,
    algorithm: AlgorithmConfig,
    measured: Mapping[str, TokenValues],
    penalties: TokenValues | None,
) -> tuple[list[list[float]], list[list[float]]]:
    require_estimator(estimator)
    function = get_adv_estimator_fn(estimator)
    asked = inspect.signature(function).parameters.keys()
    longest = max(row.length for row in rows)

    def of_tokens(values: TokenValues) -> torch.Tensor:
        return torch.tensor([row.gather(samples, values, longest) for row in rows], dtype=torch.float64)

    mask_RL = torch.zeros(len(rows), longest, dtype=torch.float64)
    rewards_RL = torch.zeros(len(rows), longest, dtype=torch.float64)
    for index, row in enumerate(rows):
        mask_RL[index, : row.length] = 1.0
        rewards_RL[index, row.length - 1] = row.credit
    if penalties is not None:
        rewards_RL -= of_tokens(penalties)
    given = {
        "token_level_rewards": rewards_RL,
        "response_mask": mask_RL,
        "index": _indices(rows),
        "config": AlgoConfig(
            adv_estimator=estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            norm_adv_by_std_in_grpo=algorithm.normalize_by_std,
        ),
        "norm_adv_by_std_in_grpo": algorithm.normalize_by_std,
        "gamma": algorithm.gamma,
        "lam": algorithm.lam,
        **{name: of_tokens(measured[name]) for name in measured.keys() & asked},
    }
    if needs_baseline(estimator):
        given["reward_baselines"] = _baselines(rows)
    advantages_RL, returns_RL = function(**{name: value for name, value in given.items() if name in asked})
    return (advantages_RL * mask_RL).tolist(), (returns_RL * mask_RL).tolist()


def _baselines(rows: Sequence[_Row]) -> torch.Tensor:
    for row in rows:
        if row.baseline is None:
            raise TrainingError(
                f'group {row.index[0]} has no baseline, which is the reward of an attempt of mode "baseline" in it; '
                "drop its samples with a reason"
            )
    return torch.tensor([row.baseline for row in rows], dtype=torch.float64)


def _indices(rows: Sequence[_Row]) -> np.ndarray:
    # Text, since numpy would make a table of tuples; the separator is in no name.
    return np.array(["\x1f".join(row.index) for row in rows], dtype=object)


def require_estimator(estimator: str) -> None:
    """Refuse an estimator that cannot be used, before anything is trained with it.

    Raises:
        TrainingError: it is unknown, or needs what the trainer does not have.
    """
    if estimator == CREDIT:
        return
    if estimator not in ADV_ESTIMATOR_REGISTRY:
        raise TrainingError(f"unknown advantage estimator {estimator!r}; there are {', '.join(usable_estimators())}")
    if missing := _missing(estimator):
        raise TrainingError(
            f"advantage estimator {estimator!r} needs {', '.join(missing)}, which the trainer does not have; "
            f"use one of {', '.join(usable_estimators())}"
        )


def usable_estimators() -> list[str]:
    """Return the names in verl's registry that can be given all that they need (the contract: ``estimators.py``)."""
    return sorted(str(name) for name in ADV_ESTIMATOR_REGISTRY if not _missing(str(name)))


def _measured_for(estimator: str) -> frozenset[str]:
    known = ESTIMATORS.get(estimator)
    return _MEASURED.get(known.needs if known else None, frozenset())


def _missing(estimator: str) -> list[str]:
    """Return the estimator's required parameters that it cannot be given."""
    given = _GIVEN | _measured_for(estimator) | (_BASELINES if needs_baseline(estimator) else frozenset())
    parameters = inspect.signature(get_adv_estimator_fn(estimator)).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        and parameter.name not in given
    ]
