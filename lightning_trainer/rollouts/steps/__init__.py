"""The steps of a training run: which attempts each of them needs, and what becomes of them."""
