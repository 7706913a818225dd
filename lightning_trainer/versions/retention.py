"""Which versions' weights are kept: a pure rule over numbers and scores."""

from collections.abc import Collection, Mapping

from lightning_trainer.config.policies.versions import VersionsConfig


def kept(stored: Collection[int], scores: Mapping[int, float], rule: VersionsConfig, *, served: int) -> set[int]:
    """Return those of the stored versions that stay.

    Args:
        scores: held-out, higher is better; a version without one is not among the best.
        served: stays always, even when a rollback made it the oldest.
    """
    newest_first = sorted(stored, reverse=True)
    stay = {served, *newest_first[: rule.keep_last]}
    if rule.keep_every is not None:
        stay |= {version for version in stored if version % rule.keep_every == 0}
    scored = [version for version in newest_first if version in scores]
    # Among equals the newest: it was trained on more.
    stay |= set(sorted(scored, key=lambda version: scores[version], reverse=True)[: rule.keep_best])
    return stay & set(stored)
