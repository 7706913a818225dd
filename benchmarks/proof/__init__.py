"""Trains the examples and writes one page of what became of each."""
