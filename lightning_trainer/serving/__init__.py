"""The engine: vLLM in its own process, and the proof that it serves the published weights."""
