"""What a weight file contains, from its header alone, and whether it fits the model.

A wrong name or shape that reaches the engine kills it half-updated, so both are checked before it is touched.
Source: the safetensors format (8 bytes little-endian header length, then JSON).
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.serving.adapter import AdapterShape

_MAX_HEADER_BYTES = 100 * 2**20
_DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_HEADER_BYTES = 100
"""Approximate size of one tensor's header."""
_EXPERTS = ".experts."


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor's data type, by torch's name, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Return the tensors of a safetensors file by name.

    Raises:
        ValueError: it is not a safetensors file, or it is cut short.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (0,)
        if not 0 < length <= min(_MAX_HEADER_BYTES, size):
            raise ValueError(f"{path} is not a safetensors file")
        try:
            document = json.loads(file.read(length))
            entries = {name: entry for name, entry in document.items() if name != "__metadata__"}
            headers = {
                name: TensorHeader(_DTYPE_NAMES.get(entry["dtype"], str(entry["dtype"])), tuple(entry["shape"]))
                for name, entry in entries.items()
            }
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path} is not a safetensors file: its header cannot be read") from error
    if size != 8 + length + end:
        raise ValueError(f"{path} has {size} bytes; its header promises {8 + length + end}")
    return headers


def model_files(folder: Path) -> list[Path]:
    """Return the weight files of a model folder, whole or in shards.

    Raises:
        ValueError: there are none.
    """
    whole = folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [
            folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        ]
    raise ValueError(f"{folder} holds no model.safetensors")


def model_headers(folder: Path) -> dict[str, TensorHeader]:
    """Return the tensors of a model folder by name, over all of its shards."""
    headers: dict[str, TensorHeader] = {}
    for path in model_files(folder):
        headers |= read_header(path)
    return headers


def version_bytes(folder: Path, dtype: str, lora_rank: int | None = None) -> int:
    """Return how large a published version of a model folder is, with its tensors in the engine's ``dtype``.

    Args:
        lora_rank: rank of the published adapter; None: all weights are published.
    """
    try:
        shapes = published_shapes(folder, lora_rank).values()
    except (ValueError, KeyError):  # loading it will say so
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    item = 4 if dtype == "float32" else 2
    return item * sum(map(math.prod, shapes)) + _HEADER_BYTES * len(shapes)


def published_shapes(folder: Path, lora_rank: int | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a published version's tensors by name.

    Args:
        lora_rank: rank of the published adapter, assumed to be on all linear layers; None: all weights are published.

    Raises:
        ValueError: the folder holds no weights that can be read.
        KeyError: its configuration has no size of the vocabulary.
        OSError: a file cannot be read.
    """
    whole = {name: header.shape for name, header in model_headers(folder).items()}
    if lora_rank is None:
        return whole
    adapter = AdapterShape(lora_rank, alpha=1, target_modules=tuple(linear_layers(folder)))
    return adapter.tensor_shapes({name: shape for name, shape in whole.items() if _EXPERTS not in name})


def linear_layers(folder: Path) -> list[str]:
    """Return the last name parts of a model's linear layers, without the embeddings and the output layer.

    These two are recognized by their one row per vocabulary entry. Experts are left out too: transformers keeps them in
    one tensor per layer, which an adapter does not change.
    """
    configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vocabulary = configuration.get("text_config", configuration)["vocab_size"]
    names = {
        name.split(".")[-2]
        for name, header in model_headers(folder).items()
        if name.endswith(".weight")
        and len(header.shape) == 2
        and header.shape[0] != vocabulary
        and _EXPERTS not in name
    }
    return sorted(names)


def ties_embeddings(folder: Path) -> bool:
    """Whether the output layer is the embedding; a file may then contain ``lm_head.weight`` or leave it out."""
    return bool(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings", False))


def disagreement(
    found: Mapping[str, TensorHeader], expected: Mapping[str, TensorHeader], dtype: str, *, tied: bool
) -> str | None:
    """Return why the tensors found cannot replace the model's, or None if they can."""
    optional = {"lm_head.weight"} if tied else set()
    if missing := sorted(set(expected) - set(found) - optional):
        return f"{len(missing)} tensors are missing: {_some(missing)}"
    if unknown := sorted(set(found) - set(expected) - optional):
        return f"{len(unknown)} tensors are not the model's: {_some(unknown)}"
    for name in sorted(found):
        if name in expected and found[name].shape != expected[name].shape:
            return f"{name} has the shape {list(found[name].shape)}; the model's is {list(expected[name].shape)}"
        if found[name].dtype != dtype:
            return f"{name} is {found[name].dtype}; the engine computes in {dtype}"
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
