"""Credits to per-token advantages, by the estimators in verl's registry.

An estimator compares rows. Segments with one row id are one row: their tokens are put one after the other, in the order
of the batch, the row's credit is the reward of its last token, and what the estimator returns goes back to the tokens
it came from. Tokens that are not trained (prompts, tool output) are in no row and get 0.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from verl.trainer.config.algorithm import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn

from lightning_trainer.credit.estimators import CREDIT, refusal
from lightning_trainer.errors import TrainingError
from lightning_trainer.types import Sample, Segment

_GIVEN = {"token_level_rewards", "response_mask", "index", "config", "norm_adv_by_std_in_grpo"}


@dataclass(slots=True)
class _Row:
    index: tuple[str, str, str]
    """(group id, agent, peers): rows with the same one are compared with each other."""
    credit: float
    pieces: list[tuple[int, Segment]] = field(default_factory=list)
    """(sample, segment) in order."""
    attempts: set[str] = field(default_factory=set)

    @property
    def length(self) -> int:
        return sum(segment.end - segment.start for _, segment in self.pieces)


def token_advantages(
    samples: Sequence[Sample], estimator: str, *, normalize_by_std: bool
) -> dict[str, tuple[float, ...]]:
    """Return one advantage a token for every sample id, 0.0 where the loss mask is 0.

    Args:
        estimator: name in verl's registry, of one that needs no critic; ``credit``: the credits as they are.
        normalize_by_std: for the estimators that ask (GRPO): divide by the group's standard deviation.

    Raises:
        TrainingError: the estimator is unknown or needs what there is not; a group holds fewer than two attempts or
            rows; a row has no credit, or several.
    """
    rows = _rows(samples)
    _require_groups(rows)
    if estimator == CREDIT:
        advantages_RL = [[row.credit] * row.length for row in rows]
    else:
        advantages_RL = _estimate(rows, estimator, normalize_by_std)
    by_sample = [[0.0] * len(sample.token_ids) for sample in samples]
    for row, advantages_L in zip(rows, advantages_RL, strict=True):
        start = 0
        for index, segment in row.pieces:
            stop = start + segment.end - segment.start
            by_sample[index][segment.start : segment.end] = advantages_L[start:stop]
            start = stop
    return {sample.sample_id: tuple(values) for sample, values in zip(samples, by_sample, strict=True)}


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
            row = rows.setdefault((*compared, segment.row_id), _Row(compared, segment.credit))
            if row.credit != segment.credit:
                raise TrainingError(
                    f"row {segment.row_id} has the credits {row.credit} and {segment.credit}; a row has one"
                )
            row.pieces.append((index, segment))
            row.attempts.add(segment.attempt_id or sample.attempt_id)
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


def _estimate(rows: Sequence[_Row], estimator: str, normalize_by_std: bool) -> list[list[float]]:
    require_estimator(estimator)
    function = get_adv_estimator_fn(estimator)
    longest = max(row.length for row in rows)
    mask_RL = torch.zeros(len(rows), longest)
    rewards_RL = torch.zeros(len(rows), longest)
    for index, row in enumerate(rows):
        mask_RL[index, : row.length] = 1.0
        rewards_RL[index, row.length - 1] = row.credit
    given = {
        "token_level_rewards": rewards_RL,
        "response_mask": mask_RL,
        "index": _indices(rows),
        "config": AlgoConfig(adv_estimator=estimator, norm_adv_by_std_in_grpo=normalize_by_std),
        "norm_adv_by_std_in_grpo": normalize_by_std,
    }
    asked = inspect.signature(function).parameters
    advantages_RL, _ = function(**{name: value for name, value in given.items() if name in asked})
    return (advantages_RL * mask_RL).tolist()


def _indices(rows: Sequence[_Row]) -> np.ndarray:
    # Text, since numpy would make a table of tuples; the separator is in no name.
    return np.array(["\x1f".join(row.index) for row in rows], dtype=object)


def require_estimator(estimator: str) -> None:
    """Refuse an estimator that cannot be used, before anything is trained with it.

    Raises:
        TrainingError: it is unknown, or needs what there is not.
    """
    if estimator == CREDIT:
        return
    if estimator not in ADV_ESTIMATOR_REGISTRY:
        raise TrainingError(f"unknown advantage estimator {estimator!r}; there are {', '.join(usable_estimators())}")
    if missing := _missing(estimator):
        raise TrainingError(
            refusal(estimator)
            or f"advantage estimator {estimator!r} needs {', '.join(missing)}, which a trainer without critic and "
            f"baseline rollouts does not have; use one of {', '.join(usable_estimators())}"
        )


def usable_estimators() -> list[str]:
    """Names in verl's registry that work on rewards, mask and groups alone (the contract: ``estimators.py``)."""
    return sorted(str(name) for name in ADV_ESTIMATOR_REGISTRY if not _missing(str(name)))


def _missing(estimator: str) -> list[str]:
    """Required parameters that cannot be given."""
    parameters = inspect.signature(get_adv_estimator_fn(estimator)).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        and parameter.name not in _GIVEN
    ]
