"""The gateway: an OpenAI-compatible door that routes calls to the engine and records exactly what it sampled."""
