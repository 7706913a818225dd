"""One program a framework: ``play(task)``, as a user would write it."""
