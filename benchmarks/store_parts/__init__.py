"""The parts of ``benchmarks/store.py``."""
