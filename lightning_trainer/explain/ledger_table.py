"""The ledger for a terminal: the outcome of every sampled token, by agent, policy version, and reason."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from lightning_trainer.explain.words import version_name, width_of_names
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import LedgerRow


def ledger_table(rows: Iterable[LedgerRow], *, in_words: bool) -> Table:
    """Return the table.

    Args:
        in_words: also explain each reason; only for rows whose reasons are all the build's.
    """
    rows = list(rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("agent", overflow="fold", min_width=width_of_names(row.agent for row in rows))
    for heading in ("version", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("tokens", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for row in rows:
        meaning = f": {escape(Reason(row.reason).explanation)}" if in_words else ""
        table.add_row(
            escape(row.agent),
            escape(version_name(row.policy, row.policy_version)),
            row.outcome.value,
            f"{row.tokens:,}",
            f"{row.calls:,}",
            f"[bold]{row.reason}[/]{meaning}",
        )
    return table
