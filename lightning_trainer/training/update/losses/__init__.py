"""Losses and what corrects or watches them: imitation, divergence, off-policy correction, mismatch."""
