"""From recorded calls to training samples: pure functions, without torch and without I/O."""
