"""Asking a model: wire formats, schemas, budgets; nothing here knows what is judged."""
