"""Changes to vLLM, one a file: what it changes, in which version, why, and what upstream says of it.

Those that belong to one thing that the host does are with it, and say the same: ``tokens/support.py``,
``tokens/support_answer.py``, ``tokens/routed_experts.py``, ``weights/transfer.py``.
``tests/lightning_trainer/serving/host/patches/test_patches.py`` fails for each that a newer vLLM no longer needs.
"""
