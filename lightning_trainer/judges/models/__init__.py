"""Asking a model: wire formats, schemas, budgets; independent of what is judged."""
