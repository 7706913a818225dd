"""The store's tables, one per file: their rows and their queries."""
