"""How the judges of a step were corrected."""

from collections.abc import Mapping

from lightning_trainer.rewards.reliability import Correction


def judge_metrics(corrections: Mapping[str, Correction]) -> dict[str, float]:
    """Return rates and weight of each judge that is corrected; the weight of one that is refused is 0."""
    metrics: dict[str, float] = {}
    for name, one in corrections.items():
        metrics[f"judge/{name}/weight"] = 0.0 if one.refused is not None else one.shrunk
        if one.refused is None:
            metrics[f"judge/{name}/false_positives"] = one.rho0
            metrics[f"judge/{name}/false_negatives"] = one.rho1
    return metrics
