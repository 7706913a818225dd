"""The input of steps: the ended attempts that wait for a step, and those that were taken out."""
