"""The store's tables, one a file: their rows and their queries."""
