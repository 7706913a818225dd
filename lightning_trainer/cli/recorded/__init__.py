"""What was recorded, shown and written to files."""
