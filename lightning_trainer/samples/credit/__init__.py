"""Who gets how much of a reward: one credit-assignment scheme per file, and the groups that are compared."""
