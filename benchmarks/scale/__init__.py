"""What more of everything costs: more spans, more daemons, larger weights."""
