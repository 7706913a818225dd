"""``lightning-trainer prompts``: versions of named prompts, and the search for better ones."""
