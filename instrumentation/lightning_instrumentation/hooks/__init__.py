"""Monkey patches of other packages: what is wrapped, when, and how it is restored."""
