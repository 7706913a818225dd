"""One diagnosis a file: a pure function of a case that returns a finding, or None where there is nothing to find."""
