"""Rollouts in environments: an agent of ours plays, or a program of the user's does."""
