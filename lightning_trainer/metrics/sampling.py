"""What a batch tells of the weights that sampled it, before anything is trained."""

from bisect import bisect_right
from collections.abc import Sequence

from lightning_trainer.types import TrainingBatch


def sampling_metrics(batch: TrainingBatch, versions: Sequence[int]) -> dict[str, float]:
    """Return entropy and staleness over the batch's sampled tokens.

    ``entropy/sampled`` is the mean of ``-log p`` of the sampled tokens under what sampled them, nats a token: an
    unbiased estimate of that distribution's entropy (at the temperature of the calls) which costs nothing.
    ``staleness/*`` counts the versions that were published after the one that sampled a token. ``sampling/restricted``
    is the share of tokens whose distribution a request's parameters changed beyond the temperature; absent where there
    are none.

    Args:
        batch: with one sampled token or more, as every batch has.
        versions: published before this step, ascending; the last one is what the step goes on from.
    """
    surprise = count = restricted = 0.0
    by_version: dict[int, int] = {}
    for sample in batch.samples:
        for segment in sample.segments:
            length = segment.end - segment.start
            surprise -= sum(sample.behaviour_logprobs[segment.start : segment.end])
            count += length
            restricted += length if segment.support is not None or segment.shaping is not None else 0
            by_version[segment.policy_version] = by_version.get(segment.policy_version, 0) + length
    staleness = {version: len(versions) - bisect_right(versions, version) for version in by_version}
    return {
        "entropy/sampled": surprise / count,
        "staleness/mean": sum(staleness[version] * tokens for version, tokens in by_version.items()) / count,
        "staleness/max": float(max(staleness.values())),
        **({"sampling/restricted": restricted / count} if restricted else {}),
    }
