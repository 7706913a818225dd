"""One file for each kind of environment. It runs in the interpreter that has its packages, and imports nothing of ours
but the protocol."""
