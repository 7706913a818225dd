"""The fixed sequence that trainer and engine both score to prove what is served (promise 8).

It depends only on the model folder and the engine's longest sequence, so a restarted run uses the same one, and every
version of a policy is measured on the same tokens. It is ordinary text: on random ids a bfloat16 engine differs from
the trainer by several nats, because tokens of probability 1e-9 are compared, and a probe that noisy proves nothing.

The texts are concatenated into one sequence: a single forward pass, whose numbers do not depend on scheduling. A new
version waits for it, so it is as short as possible. ``measure_movement`` distinguishes loaded weights from stale
ones by a slope with a standard error of at most 1 / (2 sqrt(N)): if the trainer moved far enough to decide, that is 2
sqrt(2) rms(noise), the rounding of two scorings is at most half of the movement. With N = 64 scored tokens, four
standard errors are 1/4, so stale weights, at 0, stay below 1/2, and loaded ones, at 3/4 or more, above.
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
_TOKENS_OF_EACH = 17
"""The first token of the sequence is not scored, which leaves 67."""
_LEAST_TOKENS = 2


def probe_token_ids(model_dir: Path, vocabulary_size: int, max_model_len: int) -> tuple[tuple[int, ...], ...]:
    """Return one sequence, the beginnings of four texts in the model's tokens; UTF-8 bytes if it has no tokenizer.

    Args:
        max_model_len: the engine's; a sequence to score must be at least one token shorter.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        encoded = [tokenizer(text, add_special_tokens=False).input_ids for text in _TEXTS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or unreadable
        encoded = []
    # Without tokenizer files, transformers creates an empty tokenizer for some architectures.
    if not encoded or not all(len(ids) >= _LEAST_TOKENS and max(ids) < vocabulary_size for ids in encoded):
        encoded = [[byte % vocabulary_size for byte in text.encode()] for text in _TEXTS]
    each = min(_TOKENS_OF_EACH, (max_model_len - 1) // len(_TEXTS))
    return (tuple(token for ids in encoded for token in ids[:each]),)
