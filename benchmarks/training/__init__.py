"""Training: each section has ``TITLE`` and ``run(quick) -> rows``."""
