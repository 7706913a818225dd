"""What is recorded of each token: cost and use."""
