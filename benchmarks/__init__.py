"""Benchmarks, one package each: ``python -m benchmarks.capture``. Shared code is in ``common``."""
