"""Who may come in: the daemon's token, where its user's clients find it, and the proof that it is the daemon."""
