"""A training sample as the report shows it: token by token, in the words of the tokenizer."""

from collections.abc import Callable, Sequence

from lightning_trainer.report.quickstart_report import ExampleRollout, ExampleSegment, ExampleToken
from lightning_trainer.types import Sample


def example_of(
    sample: Sample,
    advantages: Sequence[float],
    decode: Callable[[int], str],
    *,
    title: str,
    reward: float | None,
    step: int | None = None,
) -> ExampleRollout:
    """Describe a sample with the advantages ``[L]`` that the trainer used.

    Args:
        sample: as it was trained.
        advantages: one a token (``StepReport.advantages[sample_id]``).
        decode: text of one token id.
        title: what the rollout was about (its task).

    Raises:
        ValueError: there is not one advantage a token.
    """
    if len(advantages) != len(sample.token_ids):
        raise ValueError(
            f"sample {sample.sample_id}: {len(advantages)} advantages for {len(sample.token_ids)} tokens; "
            "pass the row of the same step"
        )
    segment_of = {
        position: index
        for index, segment in enumerate(sample.segments)
        for position in range(segment.start, segment.end)
    }
    tokens = tuple(
        ExampleToken(
            text=decode(token_id),
            id=token_id,
            mask=bool(mask),
            logprob=logprob if mask else None,
            advantage=advantage if mask else None,
            segment=segment_of.get(position),
        )
        for position, (token_id, mask, logprob, advantage) in enumerate(
            zip(sample.token_ids, sample.loss_mask, sample.behavior_logprobs, advantages, strict=True)
        )
    )
    segments = tuple(
        ExampleSegment(call=segment.transition_id, policy_version=segment.policy_version, credit=segment.credit)
        for segment in sample.segments
    )
    return ExampleRollout(title, sample.agent, sample.attempt_id, reward, segments, tokens, step)
