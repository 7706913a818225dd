"""The kinds of judges, one per file."""
