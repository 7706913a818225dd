"""``lightning-trainer judge --report``: how far a judge can be believed, by what is recorded."""

from rich.table import Table

from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.judges.reliability.report import JudgeReport, judge_report
from lightning_trainer.samples.rewards.reliability import Estimate
from lightning_trainer.store.places import place_of, reading


def report(config: Config, by: AnyJudge, *, as_json: bool) -> None:
    """Print what is known of a judge, from the store itself, with or without a daemon.

    Raises:
        LightningError: the store cannot be read.
    """
    with reading(place_of(config)) as connection:
        known = judge_report(connection, by)
    if as_json:
        print(visible_json(known.as_json()))
        return
    console = TerminalConsole()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in (f"judge {by.name}", "estimate", "95 %", "from"):
        table.add_column(heading, overflow="fold")
    for what, estimate in _rows(known):
        if estimate is None:
            table.add_row(what, "unknown", "", "")
        else:
            table.add_row(
                what,
                f"{estimate.value:.3f}",
                f"{estimate.low:.3f} to {estimate.high:.3f}",
                str(estimate.count),
            )
    console.print(table)
    for sentence in _sentences(known, by):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _rows(known: JudgeReport) -> list[tuple[str, Estimate | None]]:
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
