"""What is recorded of sampled tokens: what each was drawn from, its experts, and ids that a conversation keeps."""
