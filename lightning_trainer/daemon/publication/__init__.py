"""Versions on their way to the engine: publishing, guard, retention, and old ones alongside the live one."""
