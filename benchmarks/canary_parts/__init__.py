"""Simulated deployments for ``canary.py``."""
