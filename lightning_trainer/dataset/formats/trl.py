"""Rows in the forms that TRL's trainers take, as JSON lines for ``datasets.load_dataset("json")``.

- ``SFTTrainer``: conversational prompt-completion with ``tools``, or tokenized: ``input_ids`` with ``completion_mask``.
- ``DPOTrainer``: conversational preference with an explicit prompt: ``prompt``, ``chosen``, ``rejected``.
- ``GRPOTrainer`` samples by itself and reads no recorded rollouts, but a ``rollout_func`` may give it some. Samples are
  written with the keys that such a function returns: ``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask``
  (1 where the model sampled, 0 on tool output and later prompts).

Source: TRL documentation, "Dataset formats and types", "SFT Trainer" and "GRPO Trainer".
"""

from typing import Any

from lightning_trainer.dataset.examples import Example
from lightning_trainer.dataset.rows import Advantages, Row
from lightning_trainer.dataset.selection import Pair
from lightning_trainer.types import Sample


def conversational_row(example: Example) -> Row:
    """Return a demonstration in words."""
    assert example.prompt is not None
    assert example.answer is not None
    return {"prompt": list(example.prompt), "completion": [example.answer], **_tools(example)}


def tokenized_row(example: Example) -> Row:
    """Return a demonstration in ids: exactly those that the engine saw, independent of TRL's template."""
    start, sampled = len(example.prompt_ids), len(example.response_ids)
    return {
        "input_ids": [*example.prompt_ids, *example.response_ids],
        "completion_mask": [0] * start + [1] * sampled,
    }


def preference_row(pair: Pair) -> Row:
    """Return a preference pair in words, with an explicit prompt."""
    assert pair.chosen.prompt is not None
    return {
        "prompt": list(pair.chosen.prompt),
        "chosen": [pair.chosen.answer],
        "rejected": [pair.rejected.answer],
        **_tools(pair.chosen),
    }


def rollout_row(sample: Sample, advantages: Advantages | None) -> Row:
    """Return a sample with the keys of a ``rollout_func``; the completion starts at the first sampled token.

    Advantages, if given, cover the completion only, one per token.
    """
    start = sample.loss_mask.index(1)
    row: dict[str, Any] = {
        "prompt_ids": list(sample.token_ids[:start]),
        "completion_ids": list(sample.token_ids[start:]),
        "logprobs": list(sample.behavior_logprobs[start:]),
        "env_mask": list(sample.loss_mask[start:]),
        "group": sample.group_id,
        "agent": sample.agent,
        "attempt": sample.attempt_id,
    }
    if advantages is not None:
        row["advantages"] = list(advantages[sample.sample_id][start:])
    return row


def _tools(example: Example) -> Row:
    return {"tools": list(example.tools)} if example.tools else {}
