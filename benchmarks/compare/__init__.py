"""A benchmark of two commits side by side."""
