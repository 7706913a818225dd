"""One reader per span dialect; each turns spans into calls, attempts and evaluations and names what it cannot read."""
