"""The HTTP routes for telemetry, rewards, and the ends of rollouts."""
