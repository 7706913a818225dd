"""Retention: deletion by age, by size, and by use, in transactions of a few dozen milliseconds."""
