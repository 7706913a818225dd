"""``lt.prompt``: texts that have a name, and versions of which the daemon serves one."""
