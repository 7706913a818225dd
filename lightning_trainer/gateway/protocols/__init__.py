"""The APIs that callers use, each translated to the engine's own and back."""
