"""Upkeep of a store: checking, backing up, restoring, repairing, and compacting its file."""
