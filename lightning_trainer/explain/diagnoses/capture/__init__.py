"""Diagnoses of what was recorded, and of what was not."""
