"""verl's engines for this device: its own FSDP engine, the token tree's, and those with a value head."""
