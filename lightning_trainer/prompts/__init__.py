"""Prompts: what makes new versions of them from recorded attempts. The versions are in ``store.prompts``."""
