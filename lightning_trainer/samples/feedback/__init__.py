"""What people and systems say about answers, and how it becomes a reward."""
