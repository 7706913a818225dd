"""Judges and feedback at work while the daemon runs."""
