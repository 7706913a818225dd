"""The APIs that callers speak, each translated to the engine's own and back."""
