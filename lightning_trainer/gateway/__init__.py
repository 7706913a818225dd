"""The gateway: an OpenAI-compatible API that routes calls to the engine and records exactly what it sampled."""
