"""What it costs to use what is recorded of each token's sampling."""
