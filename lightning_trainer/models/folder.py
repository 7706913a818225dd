"""What a model folder must hold: a configuration, safetensors weights, a tokenizer."""

import json
from pathlib import Path

from lightning_trainer.errors import ModelError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_INDEX = "model.safetensors.index.json"


def check_folder(folder: Path) -> Path:
    """Return the folder when trainer and engine can use it.

    Raises:
        ModelError: something is missing; the message names it.
    """
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder} has no config.json: it is not a model folder") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error}") from error
    if missing := [path.name for path in weight_files(folder) if not path.is_file()]:
        raise ModelError(f"{folder} lacks the weight file {missing[0]} that its index names: copy the model again")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer ({', '.join(_TOKENIZERS)}): save it there with the model")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """Return the model's safetensors files, whole or in shards.

    Raises:
        ModelError: there are none.
    """
    if (whole := folder / "model.safetensors").is_file():
        return [whole]
    try:
        names = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except FileNotFoundError:
        raise ModelError(f"{folder} has no model.safetensors: save the weights in safetensors format") from None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}/{_INDEX} cannot be read: {error}") from error
    return [folder / name for name in sorted(set(names))]


def vocabulary_of(folder: Path) -> int | None:
    """Return how many entries the model's vocabulary has, None where its configuration does not say so."""
    configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = configuration.get("vocab_size", configuration.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) else None
