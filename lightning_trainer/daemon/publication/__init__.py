"""Versions on their way to the engine: publishing, guard, retention, and old ones beside the live one."""
