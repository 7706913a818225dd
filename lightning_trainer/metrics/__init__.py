"""What a run looks like from outside: one row of numbers a step, where the rows go, and warnings in words."""
