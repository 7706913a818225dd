"""The HTTP routes that telemetry, rewards and ends of rollouts come in by."""
