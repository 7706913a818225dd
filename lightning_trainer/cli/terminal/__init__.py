"""The one way to the terminal, which shows names, texts and errors of others and never obeys them."""
