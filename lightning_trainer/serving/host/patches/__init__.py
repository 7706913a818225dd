"""Changes to vLLM, one per file, which says what it changes, in which version, why, and what upstream says about it.

Changes that belong to one feature of the host are in that feature's file, and say the same: ``tokens/support.py``,
``tokens/support_answer.py``, ``tokens/routed_experts.py``, ``weights/transfer.py``. If a newer vLLM no longer needs a
change, ``tests/lightning_trainer/serving/host/patches/test_patches.py`` fails.
"""
