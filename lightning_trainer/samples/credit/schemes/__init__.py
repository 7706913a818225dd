"""Credit-assignment schemes, one a file, and the interface that they share."""
