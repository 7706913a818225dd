"""A judge's report as people read it: rows of a table, and sentences below it."""

from dataclasses import dataclass
from typing import Any

from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.judges.reliability.report import JudgeReport
from lightning_trainer.samples.rewards.reliability import Estimate


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """Everything as JSON-able values."""

    document: dict[str, Any]
    """See ``JudgeReport.as_json``."""
    rows: list[list[Any]]
    """What is estimated, the estimate, its interval's ends, and how many values it is from; only the first if the
    estimate is unknown."""
    sentences: list[str]


def summarize(known: JudgeReport, by: AnyJudge) -> ReportSummary:
    """Return the report on a judge as rows and sentences."""
    rows = [
        [what] if estimate is None else [what, estimate.value, estimate.low, estimate.high, estimate.count]
        for what, estimate in _estimates(known)
    ]
    return ReportSummary(known.as_json(), rows, _sentences(known, by))


def _estimates(known: JudgeReport) -> list[tuple[str, Estimate | None]]:
    checked = known.reliability
    return [
        ("false positives (says right, is wrong)", checked.false_positives),
        ("false negatives (says wrong, is right)", checked.false_negatives),
        ("tells them apart (1 less both; 0 is a coin)", checked.informedness),
        ("rank agreement (Kendall's tau-b)", checked.rank_agreement),
        ("says the same when asked again", known.same_again),
        ("score when told earlier less when told later", known.earlier_is_better),
    ]


def _sentences(known: JudgeReport, by: AnyJudge) -> list[str]:
    checked = known.reliability
    compared = ", ".join(by.checked_by)
    said = [
        f"{known.judged} attempts judged, {checked.labels} of them with a right reward "
        + (f"({compared})" if by.checked_by else "(checked_by names none: nothing to compare with)")
    ]
    if known.same_again is None:
        said.append(f"it was never asked again: lightning-trainer judge --judge {by.name} --since 7d --again")
    if known.earlier_is_better is None and by.kind == "group":
        said.append(
            f"its questions were never shuffled: lightning-trainer judge --judge {by.name} --since 7d --again --shuffle"
        )
    if by.checked_by:
        one = known.correction
        said.append(
            one.refused
            if one.refused is not None
            else f"where correct = true, (r - {one.rho0:.3f}) / {1 - one.rho0 - one.rho1:.3f} is trained with, at "
            f"{one.shrunk:.2f} of its weight"
        )
    return said
