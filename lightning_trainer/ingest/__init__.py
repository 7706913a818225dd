"""Ingest: telemetry comes in over HTTP, is made durable, and is read dialect by dialect."""
