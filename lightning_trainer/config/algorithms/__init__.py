"""Algorithms by name: settings, presets and contracts. Nothing imports torch, so bad configurations fail early."""
