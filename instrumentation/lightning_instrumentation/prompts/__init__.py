"""``lt.prompt``: texts that have a name and versions, one of which the daemon serves."""
