"""What a token id spells, by the tokenizer of the policy's model, where that is on this machine."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from lightning_trainer.models.resolve import found_model, model_cache

TextOf: TypeAlias = Callable[[int], str]


def texts_of(model: str | None) -> TextOf | None:
    """Return how to spell ids; None where the model or its tokenizer is not here, for nothing is downloaded for it.

    Args:
        model: as in the configuration; None where it has no policy.
    """
    folder = None if model is None else found_model(model, model_cache())
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return cache(lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False))
