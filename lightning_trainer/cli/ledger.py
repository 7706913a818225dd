"""The ledger as a table: what became of every sampled token, by agent, policy version and reason."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from lightning_trainer.transitions.reasons import Reason
from lightning_trainer.types import LedgerRow


def ledger_table(rows: Iterable[LedgerRow]) -> Table:
    """Return the table, its last column the reason in words."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("agent", "version", "outcome", "calls", "tokens", "why"):
        table.add_column(
            heading,
            justify="right" if heading in ("calls", "tokens") else "left",
            overflow="fold",
            no_wrap=heading != "why",
        )
    for row in rows:
        version = (
            "-" if row.policy is None else f"{row.policy}@v{'?' if row.policy_version is None else row.policy_version}"
        )
        table.add_row(
            escape(row.agent),
            escape(version),
            row.outcome.value,
            f"{row.calls:,}",
            f"{row.tokens:,}",
            f"[bold]{row.reason}[/]: {escape(Reason(row.reason).explanation)}",
        )
    return table
