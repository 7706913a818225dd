"""Algorithms: formulas in plain PyTorch, and real updates that are compared with them."""
