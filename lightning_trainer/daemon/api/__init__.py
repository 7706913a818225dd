"""The daemon's own HTTP routes."""
