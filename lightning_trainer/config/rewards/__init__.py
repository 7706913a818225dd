"""Who gives rewards besides the agent's own program: judges, people and systems."""
