"""The proof of what is served: a probe that trainer and engine both score."""
