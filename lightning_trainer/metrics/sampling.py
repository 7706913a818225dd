"""What a batch says about the weights that sampled it, before anything is trained."""

from bisect import bisect_right
from collections.abc import Container, Sequence

from lightning_trainer.types import TrainingBatch


def sampling_metrics(
    batch: TrainingBatch, versions: Sequence[int], path: Container[int] | None = None
) -> dict[str, float]:
    """Return entropy and staleness over the batch's trained tokens, and how much choice there was at the sampled ones.

    ``entropy/sampled`` is the mean of ``-log p`` of the sampled tokens under the distribution that they were sampled
    from, nats a token: an unbiased estimate of its entropy (at the temperature of the calls) that costs nothing.
    ``staleness/*`` counts the versions that were published after the one that sampled a token, over tokens whose
    version is known; for one that a rollback took back, the rollback's target was published after it.
    ``sampling/restricted`` is the share of sampled tokens whose distribution was changed by a request's parameters
    other than the temperature, and ``sampling/no_choice`` the share for which those parameters left a single entry,
    which are not trained.

    Args:
        batch: has at least one sampled token, as every batch does.
        versions: published before this step, ascending; the step starts from the last one.
        path: the versions that the step's weights are made of, published or not; None: there was no rollback.
    """
    surprise = count = sampled = restricted = 0.0
    by_version: dict[int, int] = {}
    of_known = 0
    for sample in batch.samples:
        for segment in sample.segments:
            length = sum(sample.loss_mask[segment.start : segment.end])
            sampled += segment.end - segment.start
            if segment.shaping is not None:
                restricted += segment.end - segment.start
            elif segment.support is not None:
                restricted += sum(index >= 0 for index in segment.support.pattern_L)
            surprise -= sum(sample.behavior_logprobs[segment.start : segment.end])
            count += length
            if segment.policy_version is not None:
                by_version[segment.policy_version] = by_version.get(segment.policy_version, 0) + length
                of_known += length
    found: dict[str, float] = {}
    staleness = {
        version: len(versions) - bisect_right(versions, version) + (path is not None and version not in path)
        for version in by_version
    }
    if of_known:
        found["staleness/mean"] = sum(staleness[version] * tokens for version, tokens in by_version.items()) / of_known
        found["staleness/max"] = float(max(staleness.values()))
    return {
        **found,
        "entropy/sampled": surprise / count,
        "sampling/restricted": restricted / sampled,
        "sampling/no_choice": 1 - count / sampled,
    }
