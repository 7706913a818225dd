"""Simulated judges and sources for ``rewards.py``."""
