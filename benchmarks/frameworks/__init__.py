"""Frameworks without an adapter of ours: one program each, tried in several ways; the engine's log is the truth."""
