"""Token ids for calls of which only the words are known: made again with the policy's tokenizer, and verified."""
