"""Shared by several benchmarks: tables of figures, processes, peers' environments, daemons, and a recorded history."""
