"""Simulated deployments, guarded by a canary."""
