"""The engine as the gateway sees it: where calls go, what comes back, and in which events."""
