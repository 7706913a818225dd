"""Samples, demonstrations and preference pairs, built from files without a daemon, and written to files."""
