"""Versions on their way to the engine: publishing, guard, canary, retention, and old ones alongside the live one."""
