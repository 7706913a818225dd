"""Turns a model's name in the configuration into a folder that both trainer and engine read."""
