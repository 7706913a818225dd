"""What strangers send, and faults: one package a section."""
