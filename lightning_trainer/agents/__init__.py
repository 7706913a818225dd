"""The agents that were seen: their calls, their tools, which policy claims them, and what was not captured."""
