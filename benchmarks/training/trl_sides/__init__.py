"""Both sides of the section ``trl``; ``grpo.py`` and what it imports run in TRL's own environment."""
