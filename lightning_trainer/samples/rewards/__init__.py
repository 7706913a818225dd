"""Evaluations to rewards of attempts and of single calls."""
