"""Environments: what a step costs, many at once, and attempts an hour of each kind."""
