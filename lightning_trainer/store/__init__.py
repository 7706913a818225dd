"""The store: spans, attempts, steps, ledger and policy versions, durable once acknowledged; in SQLite or PostgreSQL."""

from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.store import Store

__all__ = ["SqliteStore", "StepRecord", "StepState", "Store"]
