"""What the daemon watches itself for, and tells."""
