"""What pages and reports are made of: differences with their intervals, charts, tokens, and pages of HTML."""

from lightning_trainer.report.difference import (
    MeanDifference,
    PairedDifference,
    mean_difference,
    mean_interval,
    paired_difference,
    wilson_interval,
)

__all__ = [
    "MeanDifference",
    "PairedDifference",
    "mean_difference",
    "mean_interval",
    "paired_difference",
    "wilson_interval",
]
