"""Programs that the benchmark of capture starts and measures."""
