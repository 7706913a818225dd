"""The store at its largest."""
