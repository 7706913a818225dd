"""Changes to vLLM, one a file: what it changes, and why."""
