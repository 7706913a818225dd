"""One file per kind of environment. Each runs in the interpreter that has its packages; one that runs in an interpreter
of its own imports only those of our modules that need no other packages: the protocol, ``loading``, ``task_fields``."""
