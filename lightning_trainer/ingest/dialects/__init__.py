"""One reader per span dialect: turns spans into calls, attempts, and evaluations, and reports what it cannot read."""
