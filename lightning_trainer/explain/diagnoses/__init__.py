"""One diagnosis per file: a pure function of a case that returns a finding, or None."""
