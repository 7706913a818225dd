"""The input of steps: the ended attempts that wait for one, and those that were taken out."""
