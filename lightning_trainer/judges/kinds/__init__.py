"""The kinds of judges, one a file."""
