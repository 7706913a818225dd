"""The parts of ``benchmarks/training.py``, one section a file."""
