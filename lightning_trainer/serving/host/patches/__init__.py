"""Changes to vLLM, one a file: what it changes, in which version, why, and what upstream says of it.

``tests/lightning_trainer/serving/host/patches/test_patches.py`` fails for each that a newer vLLM no longer needs.
"""
