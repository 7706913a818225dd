"""Calls of which only the words are known: ids made again with the policy's tokenizer, and checked."""
