"""What a run did, as ``report.json`` and as one page that a browser opens from disk."""

from lightning_trainer.report.difference import (
    MeanDifference,
    PairedDifference,
    mean_difference,
    mean_interval,
    paired_difference,
    wilson_interval,
)
from lightning_trainer.report.page import ReportFiles, write_report
from lightning_trainer.report.quickstart_report import (
    ExampleRollout,
    ExampleSegment,
    ExampleToken,
    FamilyResult,
    HeldOut,
    HeldOutResult,
    Machine,
    QuickstartReport,
    StepResult,
    example_of,
    read_report,
)

__all__ = [
    "ExampleRollout",
    "ExampleSegment",
    "ExampleToken",
    "FamilyResult",
    "HeldOut",
    "HeldOutResult",
    "Machine",
    "MeanDifference",
    "PairedDifference",
    "QuickstartReport",
    "ReportFiles",
    "StepResult",
    "example_of",
    "mean_difference",
    "mean_interval",
    "paired_difference",
    "read_report",
    "wilson_interval",
    "write_report",
]
