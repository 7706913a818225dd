"""What becomes of a policy's versions: where each came from, which are kept, how good each is, and the way back."""
