"""Our spans: created, numbered, and encoded as OTLP."""
