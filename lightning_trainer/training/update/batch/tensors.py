"""Samples to the jagged TensorDict that verl's workers take; nothing is padded.

A sample's prompt ends before its first trained token and everything after is its response, tool output and later
prompts included: those have a loss mask of 0. ``old_log_probs`` are the engine's behavior logprobs unless others are
given, so that the policy ratio is taken against what really sampled the tokens and no extra forward pass is needed.
They are of the distribution that the engine sampled from (temperature, penalties, grammar, top-p ...), and so is what
the trainer compares them with (``sampled_from``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.update.batch.images import ImageInputs
from lightning_trainer.training.update.batch.sampled_from import (
    EXPERTS,
    EXPERTS_OF_TOKEN,
    SEGMENT_OF_TOKEN,
    SEGMENTS,
    expert_table,
    segment_table,
)
from lightning_trainer.types import Sample

TokenValues: TypeAlias = Mapping[str, Sequence[float]]
"""By sample id: one value per token, without meaning where the mask is 0."""


IMAGES = "multi_modal_inputs"
"""verl's key: by sample, what the model reads in addition to the ids."""
BEHAVIOR = "behaviour_log_probs"
"""Key of the engine's log-probabilities, whatever the ratio is taken against."""


def training_tensors(
    samples: Sequence[Sample],
    values: Mapping[str, TokenValues],
    masks: Mapping[str, Sequence[int]] | None = None,
    *,
    experts: bool = True,
    images: ImageInputs | None = None,
) -> TensorDict:
    """Return what ``TrainingWorker.train_batch`` reads.

    Args:
        samples: each with at least one trained token.
        values: what the loss reads at every token, by verl's names (``advantages``, ``ref_log_prob`` ...). Given here,
            ``old_log_probs`` replaces the behavior logprobs.
        masks: by sample id, which of the trained tokens count; all of them when absent.
        experts: whether the recorded experts are used again; a model other than the one that sampled chooses its own.
        images: prepares images for a model that sees; None: the model reads only text.

    Raises:
        TrainingError: a behavior logprob is infinite or not a number, a sample has parts that are not text and the
            model sees none, or an image is missing.
    """
    for sample in samples:
        if sample.media and images is None:
            raise TrainingError(
                f"sample {sample.sample_id}: its prompt holds {sample.media[0].modality} "
                f'({sample.media[0].uri}), and the model reads text alone; set non_text = "drop" in [[policy]]'
            )
        if wrong := [logprob for logprob in sample.behavior_logprobs if not math.isfinite(logprob)]:
            raise TrainingError(f"sample {sample.sample_id}: a behavior logprob is {wrong[0]}; it must be a number")
    prompts = [sample.loss_mask.index(1) for sample in samples]
    cut = list(zip(samples, prompts, strict=True))
    counted = [(masks[sample.sample_id] if masks else sample.loss_mask)[prompt:] for sample, prompt in cut]
    tensors = _token_tensors([tuple(sample.token_ids) for sample in samples], prompts, counted)
    behavior = {sample.sample_id: sample.behavior_logprobs for sample in samples}
    for name, by_sample in {"old_log_probs": behavior, BEHAVIOR: behavior, **values}.items():
        tensors[name] = _jagged([by_sample[sample.sample_id][prompt:] for sample, prompt in cut], torch.float32)
    of_batch: dict[str, Any] = {"global_batch_size": len(samples)}
    temperatures = [sample.temperature for sample in samples]
    if len(set(temperatures)) > 1:
        tensors["temperature"] = torch.tensor(temperatures)
    else:
        of_batch["temperature"] = temperatures[0]
    table, numbers = segment_table(samples)
    if table is not None:
        of_batch[SEGMENTS] = table
        tensors[SEGMENT_OF_TOKEN] = _jagged(
            [of_token[prompt:] for of_token, prompt in zip(numbers, prompts, strict=True)], torch.int64
        )
    chosen, rows = expert_table(samples) if experts else (None, [])
    if chosen is not None:
        of_batch[EXPERTS] = chosen
        tensors[EXPERTS_OF_TOKEN] = torch.nested.as_nested_tensor(
            list(map(torch.from_numpy, rows)), layout=torch.jagged
        )
    if images is not None and any(shown := [images.of(sample) for sample in samples]):
        tensors[IMAGES] = shown
    return tu.get_tensordict(tensors, of_batch)


def scoring_tensors(sequences: Sequence[Sequence[int]]) -> TensorDict:
    """Return what ``TrainingWorker.infer_batch`` reads to score every token of the sequences except the first."""
    masks = [[1] * (len(sequence) - 1) for sequence in sequences]
    return tu.get_tensordict(_token_tensors(sequences, [1] * len(sequences), masks), {"temperature": 1.0})


def _token_tensors(
    sequences: Sequence[Sequence[int]], prompts: Sequence[int], masks: Sequence[Sequence[int]]
) -> dict[str, Any]:
    cut = list(zip(sequences, prompts, strict=True))
    mask = _jagged(masks, torch.int64)
    return {
        "prompts": _jagged([sequence[:prompt] for sequence, prompt in cut], torch.int64),
        "responses": _jagged([sequence[prompt:] for sequence, prompt in cut], torch.int64),
        "input_ids": _jagged(sequences, torch.int64),
        "position_ids": _jagged([range(len(sequence)) for sequence in sequences], torch.int64),
        "response_mask": mask,
        "loss_mask": mask.clone(),
    }


def _jagged(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)
