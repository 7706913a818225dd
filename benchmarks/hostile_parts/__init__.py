"""The parts of ``benchmarks/hostile.py``: one module a section, and what they share."""
