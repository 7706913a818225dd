"""What a machine has, and what each part gets of it."""
