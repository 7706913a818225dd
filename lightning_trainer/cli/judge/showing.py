"""What ``lightning-trainer judge`` prints."""

from rich.markup import escape
from rich.table import Table

from lightning_trainer.cli.terminal.console import TerminalConsole, visible
from lightning_trainer.daemon.rewards.by_hand import Done, DryRun
from lightning_trainer.explain.finding import counted
from lightning_trainer.judges.reliability.summary import ReportSummary

_REASON_SHOWN = 160


def show_done(done: Done, judge: str) -> None:
    """Print a table of verdicts, and what they cost."""
    console = TerminalConsole()
    judged = done.judged
    if judged:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("attempt", "task", "score", "reason"):
            table.add_column(heading, overflow="fold")
        for one in judged:
            score = "[yellow]missing[/]" if one.value is None else f"{one.value:.3g}"
            reason = one.reason if len(one.reason) <= _REASON_SHOWN else f"{one.reason[:_REASON_SHOWN]} ..."
            before = " (answered before)" if one.remembered else ""
            table.add_row(escape(one.attempt_id), escape(done.tasks[one.attempt_id]), score, escape(reason) + before)
        console.print(table)
    given = [one for one in judged if one.value is not None]
    said = [f"judge {judge} gave {len(given)} of {len(judged)} attempts a reward"]
    if done.kept:
        said.append(f"{done.kept} had it already")
    if calls := done.spent["calls"]:
        cost = f", {done.money:.4g} by your prices" if done.money else ""
        said.append(f"{calls} calls, {done.spent['input_tokens']:,} + {done.spent['output_tokens']:,} tokens{cost}")
    if late := len(done.trained_before):
        said.append(f"{late} are in a step already, where these rewards come too late: stored, not trained")
    said += done.left_out
    _say(console, "; ".join(said))


def show_dry_run(would: DryRun, judge: str) -> None:
    """Print how much would be asked, and the first question."""
    for why in would.cannot_be_judged:
        print(visible(f"cannot be judged: {why}"))
    print(
        visible(
            f"judge {judge} would be asked {counted(would.questions, 'question')} about "
            f"{counted(would.attempts, 'attempt')}: {would.characters:,} characters, at most about {would.tokens:,} "
            "tokens and what it is told each time; "
            + "; ".join([f"questions that were answered before: {would.answered_before}", *would.left_out])
        )
    )
    if would.first is not None:
        print(visible(f"\nthe first question:\n\n{would.first}"))


def show_report(report: ReportSummary, judge: str) -> None:
    """Print how far a judge can be believed, judging by what is recorded."""
    console = TerminalConsole()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in (f"judge {judge}", "estimate", "95 %", "from"):
        table.add_column(heading, overflow="fold")
    for what, *estimate in report.rows:
        if not estimate:
            table.add_row(what, "unknown", "", "")
            continue
        value, low, high, count = estimate
        table.add_row(what, f"{value:.3f}", f"{low:.3f} to {high:.3f}", str(count))
    console.print(table)
    for sentence in report.sentences:
        _say(console, sentence)


def _say(console: TerminalConsole, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
