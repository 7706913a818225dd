"""Sections of ``benchmarks/sampling.py``."""
