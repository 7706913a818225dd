"""Who gets how much of a reward: one credit-assignment scheme a file, and the groups that are compared."""
