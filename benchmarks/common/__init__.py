"""What several benchmarks use: tables of figures, processes, peers' environments, daemons and a recorded history."""
