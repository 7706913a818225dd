"""Our engines in verl's registry: its own FSDP engine, the token tree's, and those with a value head."""
