"""The engine: vLLM in a process of its own, and the proof that what it serves is what was published."""
