"""The rows of dataset files, with the column names, types and schema version of each kind.

A name never changes its meaning: a column that changes gets a new schema version, and readers refuse a version that
they do not know.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from lightning_trainer.dataset.examples import Example
from lightning_trainer.dataset.selection import Pair
from lightning_trainer.errors import DatasetError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.types import Media, Sample, Segment

Row: TypeAlias = dict[str, Any]
Advantages: TypeAlias = Mapping[str, Sequence[float]]
"""By sample id, one value per token."""

SAMPLES = "samples/1"
EXAMPLES = "examples/1"
PAIRS = "pairs/1"


def sample_row(sample: Sample, advantages: Advantages | None) -> Row:
    """Return a sample as a row of ``samples/1``; its advantages are None if none are given."""
    return {
        "sample_id": sample.sample_id,
        "policy": sample.policy,
        "agent": sample.agent,
        "group_id": sample.group_id,
        "attempt_id": sample.attempt_id,
        "token_ids": list(sample.token_ids),
        "loss_mask": list(sample.loss_mask),
        "behaviour_logprobs": list(sample.behavior_logprobs),
        "advantages": None if advantages is None else list(advantages[sample.sample_id]),
        "temperature": sample.temperature,
        "segments": [
            {
                "start": segment.start,
                "end": segment.end,
                "transition_id": segment.transition_id,
                "policy_version": segment.policy_version,
                "credit": segment.credit,
                "row_id": segment.row_id,
                "peers": segment.peers,
                "agent": segment.agent,
                "attempt_id": segment.attempt_id,
                "follows": segment.follows,
                "shaping": None if segment.shaping is None else _shaping_row(segment.shaping),
                "support": None if segment.support is None else segment.support.encode(),
                "routed_experts": None if segment.routed_experts is None else segment.routed_experts.encode(),
            }
            for segment in sample.segments
        ],
        "media": [{"modality": m.modality, "uri": m.uri, "mime_type": m.mime_type} for m in sample.media],
        "baseline": sample.baseline,
    }


def sample_of(row: Mapping[str, Any]) -> Sample:
    """Read a sample that :func:`sample_row` wrote.

    Raises:
        DatasetError: a column is missing, or the row is not a sample (its lengths differ ...).
    """
    try:
        return Sample(
            sample_id=row["sample_id"],
            policy=row["policy"],
            agent=row["agent"],
            group_id=row["group_id"],
            attempt_id=row["attempt_id"],
            token_ids=tuple(row["token_ids"]),
            loss_mask=tuple(row["loss_mask"]),
            behavior_logprobs=tuple(row["behaviour_logprobs"]),
            segments=tuple(map(_segment_of, row["segments"])),
            temperature=row["temperature"],
            media=tuple(Media(**media) for media in row["media"]),
            baseline=row["baseline"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"row {row.get('sample_id')}: it is not a sample: {error}") from error


def _shaping_row(shaping: Shaping) -> Row:
    return {
        "logit_bias": [{"token_id": token_id, "bias": bias} for token_id, bias in shaping.logit_bias],
        "presence_penalty": shaping.presence_penalty,
        "frequency_penalty": shaping.frequency_penalty,
        "repetition_penalty": shaping.repetition_penalty,
    }


def _segment_of(row: Mapping[str, Any]) -> Segment:
    """Read a segment: bytes are text in JSON; files of version 0.1.0 have neither shaping nor support nor experts."""
    shaping, support, experts = row.get("shaping"), row.get("support"), row.get("routed_experts")
    if shaping is not None:
        biases = tuple((entry["token_id"], entry["bias"]) for entry in shaping["logit_bias"])
        shaping = Shaping(**{**shaping, "logit_bias": biases})
    if support is not None:
        support = Support.decode(b64decode(support) if isinstance(support, str) else support)
    if experts is not None:
        experts = RoutedExperts.decode(b64decode(experts) if isinstance(experts, str) else experts)
    return Segment(**{**row, "shaping": shaping, "support": support, "routed_experts": experts})


def example_row(example: Example) -> Row:
    """Return an example as a row of ``examples/1``; what is not known (words or ids) is None."""
    return {
        "call_id": example.call_id,
        "agent": example.agent,
        "attempt_id": example.attempt_id,
        "group_id": example.group_id,
        "fidelity": example.fidelity.value,
        "model": example.model,
        "reward": example.reward,
        "prompt": None if example.prompt is None else list(example.prompt),
        "answer": example.answer,
        "tools": list(example.tools),
        "prompt_ids": list(example.prompt_ids) or None,
        "response_ids": list(example.response_ids) or None,
        "truncated": example.truncated,
    }


def pair_row(pair: Pair) -> Row:
    """Return a preference pair as a row of ``pairs/1``; the prompt is the chosen example's."""
    chosen, rejected = pair.chosen, pair.rejected
    return {
        "agent": chosen.agent,
        "group_id": chosen.group_id,
        "prompt": None if chosen.prompt is None else list(chosen.prompt),
        "tools": list(chosen.tools),
        "prompt_ids": list(chosen.prompt_ids) or None,
        **{f"chosen_{name}": value for name, value in _side(chosen).items()},
        **{f"rejected_{name}": value for name, value in _side(rejected).items()},
    }


def _side(example: Example) -> Row:
    return {
        "call_id": example.call_id,
        "reward": example.reward,
        "fidelity": example.fidelity.value,
        "answer": example.answer,
        "ids": list(example.response_ids) or None,
        "truncated": example.truncated,
    }
