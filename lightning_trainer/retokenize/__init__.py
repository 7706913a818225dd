"""Token ids for calls that are known only by their words: made again with the policy's tokenizer, and verified."""
