"""Credit-assignment schemes, one per file, and the interface that they share."""
