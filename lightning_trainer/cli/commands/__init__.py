"""Commands and their options; each command's work is in a module of its own."""
