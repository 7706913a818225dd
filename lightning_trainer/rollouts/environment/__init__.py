"""Rollouts in environments, played by our own agent or by the user's program."""
