"""Watching a real agent learn."""
