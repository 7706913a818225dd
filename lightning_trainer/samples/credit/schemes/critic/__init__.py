"""Schemes that need a critic: generalized advantage estimation over tokens, turns, or both."""
