"""The sections of ``benchmarks/training.py``: each has ``TITLE`` and ``run(quick) -> rows``."""
