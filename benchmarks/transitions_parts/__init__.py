"""The parts of ``benchmarks/transitions.py``: workloads, one section a file, and the peer."""
