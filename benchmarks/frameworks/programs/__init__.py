"""One program per framework: ``play(task)``, as a user would write it."""
