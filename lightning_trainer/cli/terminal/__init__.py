"""The one way to the terminal: names, texts and errors of others are shown there, and never obeyed by it."""
