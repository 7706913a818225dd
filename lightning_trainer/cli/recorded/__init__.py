"""Commands that show what was recorded, or write it to files."""
