"""Which calls go to the daemon's gateway, with what identity, and how each is sent and falls back."""
