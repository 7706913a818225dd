"""What the benchmarks of the whole loop share."""
