"""Algorithms by name: settings, presets and contracts. Free of torch, so that a configuration is refused early."""
