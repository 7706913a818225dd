"""Making new versions of prompts from recorded attempts. The versions are in ``store.prompts``."""
