"""One file per kind of environment. Each runs in the interpreter that has its packages, and imports nothing of ours but
the protocol."""
