"""Benchmarks, a package each: ``python -m benchmarks.capture``. What they share is in ``common``."""
