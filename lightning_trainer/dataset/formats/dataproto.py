"""Samples as verl's ``DataProto``: what its PPO trainer holds between generation and the actor's update.

Keys are verl's (0.9.1, ``trainer/ppo/ray_trainer.py``): prompts are padded on the left, responses on the right, and
everything after the first prompt is response, with ``response_mask`` 0 on tool output and later prompts. Each row is
one sample; ``advantages`` are computed already, because verl's own estimators take a row for a whole attempt, which a
sample of several calls need not be. Importing this module imports verl (10-20 s).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from lightning_trainer.dataset.atomic import replacing
from lightning_trainer.errors import DatasetError
from lightning_trainer.training.on_ray.environ import set_ray_environment
from lightning_trainer.types import Sample

set_ray_environment()  # verl imports Ray, which reads its environment then

from verl import DataProto  # noqa: E402


def to_dataproto(
    samples: Sequence[Sample], advantages: Mapping[str, Sequence[float]], *, pad_token_id: int = 0
) -> DataProto:
    """Return the samples as one batch.

    Args:
        samples: each with at least one trained token.
        advantages: by sample id, one value per token.
        pad_token_id: the token that both sides are padded with; masked everywhere.

    Returns:
        Tensors ``[B, P]`` prompts; ``[B, R]`` responses, response_mask, rollout_log_probs, old_log_probs, advantages,
        returns; ``[B, P + R]`` input_ids, attention_mask, position_ids. Text: uid (the group), agent, attempt_id,
        sample_id. meta_info: temperature.

    Raises:
        DatasetError: there is no sample, or they were sampled at different temperatures (verl has one per batch).
    """
    temperature = _common_temperature(samples)
    starts = [sample.loss_mask.index(1) for sample in samples]
    cut = list(zip(samples, starts, strict=True))
    lengths = [len(sample.token_ids) - start for sample, start in cut]
    width = max(lengths)
    prompts = _padded_left([sample.token_ids[:start] for sample, start in cut], max(starts), pad_token_id)
    prompt_mask = _padded_left([[1] * start for start in starts], max(starts), 0)
    responses = _padded_right([sample.token_ids[start:] for sample, start in cut], width, pad_token_id)
    response_tokens = _padded_right([[1] * length for length in lengths], width, 0)
    attention_mask = torch.cat([prompt_mask, response_tokens], dim=1)
    response_mask = _padded_right([sample.loss_mask[start:] for sample, start in cut], width, 0)
    logprobs = _padded_right([one.behavior_logprobs[start:] for one, start in cut], width, 0.0, torch.float32)
    advantage = _padded_right([advantages[one.sample_id][start:] for one, start in cut], width, 0.0, torch.float32)
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
            "response_mask": response_mask,
            "rollout_log_probs": logprobs,
            # The policy ratio is taken against the policy that really sampled the tokens.
            "old_log_probs": logprobs.clone(),
            "advantages": advantage,
            "returns": advantage.clone(),
        },
        non_tensors={
            "uid": _texts(sample.group_id for sample in samples),
            "agent": _texts(sample.agent for sample in samples),
            "attempt_id": _texts(sample.attempt_id for sample in samples),
            "sample_id": _texts(sample.sample_id for sample in samples),
        },
        meta_info={"temperature": temperature},
    )


def write_dataproto(batch: DataProto, path: Path) -> None:
    """Write a batch as a file that ``DataProto.load_from_disk`` reads.

    Raises:
        DatasetError: the file cannot be written.
    """
    with replacing(path) as aside:
        batch.save_to_disk(str(aside))


def _common_temperature(samples: Sequence[Sample]) -> float:
    if not samples:
        raise DatasetError("there is no sample to write")
    temperatures = sorted({sample.temperature for sample in samples})
    if len(temperatures) > 1:
        raise DatasetError(
            f"the samples have the temperatures {', '.join(map(str, temperatures))} and a DataProto has one: write "
            "them as parquet, or sample at one temperature"
        )
    return temperatures[0]


def _padded_left(rows: Sequence[Sequence[int]], width: int, fill: int) -> torch.Tensor:
    return torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows])


def _padded_right(
    rows: Sequence[Sequence[float]], width: int, fill: float, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    return torch.tensor([list(row) + [fill] * (width - len(row)) for row in rows], dtype=dtype)


def _texts(values) -> np.ndarray:
    return np.array(list(values), dtype=object)
