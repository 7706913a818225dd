"""verl's metrics as plain numbers."""

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from verl.utils.metric import Metric

_log = logging.getLogger(__name__)

_ABOUT_GPUS = "perf/"
"""Prefix of verl's memory figures."""


class Update(NamedTuple):
    metrics: dict[str, float]
    """By verl's names; ``actor/update_skipped`` is 1.0 when the gradient was not finite and the weights were left."""
    tokens_computed: int


def flat_metrics(metrics: Mapping[str, Any], model: str) -> dict[str, float]:
    """Return what is finite, and ``{model}/update_skipped``."""
    flat = {name: _number(value) for name, value in metrics.items() if not name.startswith(_ABOUT_GPUS)}
    skipped = not math.isfinite(flat.get("grad_norm", 0.0))
    if skipped:
        _log.warning("the gradient is not finite: the weights were left as they are")
    finite = {name: value for name, value in flat.items() if math.isfinite(value)}
    return {**finite, f"{model}/update_skipped": float(skipped)}


def _number(value: Any) -> float:
    if isinstance(value, Metric):
        return float(value.aggregate())
    if isinstance(value, list) and isinstance(value[0], Metric):
        return float(Metric.aggregate_dp(value))  # one a process
    if isinstance(value, list):
        return sum(_number(item) for item in value) / len(value)
    return float(value)
