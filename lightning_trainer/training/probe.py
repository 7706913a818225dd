"""The fixed sequences that trainer and engine both score to prove what is served (promise 8).

They depend on the model folder alone, so a restarted run agrees on them, and every version of a policy is measured on
the same tokens. They are ordinary text: on ids at random a bfloat16 engine differs from the trainer by several nats,
because tokens of probability 1e-9 are compared, and a probe that noisy proves nothing.
"""

from pathlib import Path

_TEXTS = (
    "A train leaves the station at nine in the morning with 120 passengers. At the next stop 35 people get off and 48 "
    "get on. How many passengers are on the train when it goes on?",
    "To bake a loaf of bread you need flour, water, salt and yeast. Mix them, let the dough rest until it has doubled "
    "in size, and bake it in a hot oven for about forty minutes.",
    "The capital of France is Paris. It lies on the river Seine and is known for its museums, its cafes and the Eiffel "
    "Tower, which was built for the world fair of 1889.",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)",
)
_MOST_TOKENS = 40
_LEAST_TOKENS = 2


def probe_token_ids(model_dir: Path, vocabulary_size: int) -> tuple[tuple[int, ...], ...]:
    """Return four texts in the model's tokens, at most 40 each; their UTF-8 bytes where it has no tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        encoded = [tuple(tokenizer(text, add_special_tokens=False).input_ids[:_MOST_TOKENS]) for text in _TEXTS]
    except (OSError, ValueError, KeyError):
        encoded = []
    # Without tokenizer files transformers makes an empty tokenizer for some architectures.
    if encoded and all(len(ids) >= _LEAST_TOKENS and max(ids) < vocabulary_size for ids in encoded):
        return tuple(encoded)
    return tuple(tuple(byte % vocabulary_size for byte in text.encode()[:_MOST_TOKENS]) for text in _TEXTS)
