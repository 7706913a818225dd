"""Simulated judges, and sources of feedback."""
