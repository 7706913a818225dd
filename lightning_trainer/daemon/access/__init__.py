"""Access to the daemon: its token, where its user's clients find it, and the proof that the daemon is the right one."""
