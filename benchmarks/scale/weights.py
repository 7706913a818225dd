"""From weights that are written to tensors that are loaded, by each way from trainer to engine.

The weights are random, float32, in the shapes of SmolLM2-135M. Loading them is compared with copying the same bytes
from tensor to tensor, which no way can avoid. Another way is one more function in ``WAYS``.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import safe_open

from benchmarks.common.rows import Row
from lightning_trainer.serving.host.weights.weight_file import read_header
from lightning_trainer.serving.shared_memory import WeightFiles, file_checksum
from lightning_trainer.training.update.exporting import write_atomically

TITLE = "From written weights to loaded tensors"

Tensors: TypeAlias = Mapping[str, torch.Tensor]
Way: TypeAlias = Callable[[Tensors], AbstractContextManager[Callable[[Tensors], None]]]
"""Writes weights as the trainer does, and yields a function that loads them into existing tensors."""

_LAYERS, _HIDDEN, _KEYS, _INTERMEDIATE, _VOCABULARY = 30, 576, 192, 1536, 49_152


def run(quick: bool = False) -> list[Row]:
    """``quick``: fewer layers and repetitions."""
    state = {name: torch.randn(shape) for name, shape in _shapes(layers=2 if quick else _LAYERS).items()}
    loaded = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    size = sum(tensor.nbytes for tensor in state.values())
    rows = []
    for what, way in WAYS.items():
        with way(state) as load:
            load_s, copy_s = _measure(load, state, loaded, times=1 if quick else 11)
        note = f"{len(state)} tensors, {size / 2**20:,.0f} MiB"
        rows += [
            Row("weights", f"{what}: checked and loaded, over a copy", load_s / copy_s, "x"),
            Row("weights", f"{what}: checked and loaded", load_s, "s", note=note),
            Row("weights", "a copy of the same bytes beside it", copy_s, "s"),
        ]
    return rows


def _measure(load: Callable[[Tensors], None], state: Tensors, loaded: Tensors, *, times: int) -> tuple[float, float]:
    """Return the medians in seconds of loading and of copying, in turns; the first turn warms up."""
    found = []
    for _ in range(times + 1):
        for tensor in loaded.values():
            tensor.zero_()
        load_s = _seconds(lambda: load(loaded))
        if not all(torch.equal(tensor, state[name]) for name, tensor in loaded.items()):
            raise RuntimeError("what was loaded is not what was written")
        found.append((load_s, _seconds(lambda: _copy(state, loaded))))
    loads, copies = zip(*found[1:], strict=True)
    return statistics.median(loads), statistics.median(copies)


@contextmanager
def _shared_memory_file(state: Tensors) -> Iterator[Callable[[Tensors], None]]:
    """A safetensors file in shared memory, checked and mapped as the engine does (``serving/host/weights``)."""
    size = sum(tensor.nbytes for tensor in state.values())
    with tempfile.TemporaryDirectory() as scratch, WeightFiles(Path(scratch), version_bytes=size) as files:
        path = files.path(1)
        write_atomically(state, path)
        checksum = file_checksum(path)

        def load(into: Tensors) -> None:
            if file_checksum(path) != checksum or read_header(path).keys() != into.keys():
                raise RuntimeError(f"{path} is not what was written")
            with safe_open(path, framework="pt", device="cpu") as file:
                for name, tensor in into.items():
                    tensor.copy_(file.get_tensor(name))

        yield load


WAYS: Mapping[str, Way] = {"shared-memory file": _shared_memory_file}


def _copy(source: Tensors, target: Tensors) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of SmolLM2-135M by parameter; its output layer is tied to the embeddings."""
    of_layer = {
        "input_layernorm": (_HIDDEN,),
        "self_attn.q_proj": (_HIDDEN, _HIDDEN),
        "self_attn.k_proj": (_KEYS, _HIDDEN),
        "self_attn.v_proj": (_KEYS, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, _HIDDEN),
        "post_attention_layernorm": (_HIDDEN,),
        "mlp.gate_proj": (_INTERMEDIATE, _HIDDEN),
        "mlp.up_proj": (_INTERMEDIATE, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, _INTERMEDIATE),
    }
    of_layers = {
        f"model.layers.{number}.{name}.weight": shape for number in range(layers) for name, shape in of_layer.items()
    }
    return {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        **of_layers,
        "model.norm.weight": (_HIDDEN,),
    }
