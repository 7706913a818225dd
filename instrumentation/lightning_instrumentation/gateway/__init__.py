"""Which calls go to the daemon's gateway, and with what identity."""
