"""Spans of ours: made, written down, numbered, and encoded as OTLP."""
