"""Commands that start, ask and look after a daemon and its store."""
