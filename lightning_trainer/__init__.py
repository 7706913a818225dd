"""lightning-trainer: from OpenTelemetry spans of running agents to better weights, served while they run."""

__version__ = "0.1.0"
