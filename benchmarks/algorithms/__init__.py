"""Algorithms: formulas in plain PyTorch, and the updates that are held to them."""
