"""What people and systems say of answers, and how it becomes a reward."""
