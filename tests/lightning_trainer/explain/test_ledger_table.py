"""The ledger for a terminal."""

import io

from rich.console import Console

from lightning_trainer.explain.console import ledger_table
from lightning_trainer.types import LedgerRow, Outcome


def test_names_of_agents_stand_whole_in_a_narrow_terminal() -> None:
    # Before: "customer_support_esca" and "lation_agent" on the next line.
    agent = "customer_support_escalation_agent"
    row = LedgerRow(agent, "customer_support", 12, Outcome.MASKED, "zero_variance_group", 48_312, 512)
    told = io.StringIO()
    Console(width=80, file=told).print(ledger_table([row], in_words=True))
    assert agent in told.getvalue()
    assert "48,312" in told.getvalue()
