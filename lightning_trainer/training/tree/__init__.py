"""The token-tree engine: a batch of samples becomes a tree of unique tokens, and each is computed once."""
