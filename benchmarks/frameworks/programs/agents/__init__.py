"""Programs of agent frameworks."""
