"""Faults over a real run: daemon, engine, trainer, Ray, writers, disk and store; see ``run``."""
