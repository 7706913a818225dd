"""OpenTelemetry's wire format."""
