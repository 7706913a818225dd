"""Wiring and life cycle: one process that holds the gateway, ingest, the store and the training loop together."""
