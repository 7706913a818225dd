"""The store: spans, attempts, steps, ledger and policy versions in one SQLite file, durable once acknowledged."""

from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.store.sqlite import SqliteStore

__all__ = ["SqliteStore", "StepRecord", "StepState"]
