"""Which agents were seen: their calls, their tools, who claims them, and what of them was not captured."""
