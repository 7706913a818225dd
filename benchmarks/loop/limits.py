"""What this machine could do at most: the products of a model's own shapes, and memory read and written.

The limits are measured in the run that they are compared in, with all cores and nothing else running. Each counts only
what cannot be left out: an update's products over its unique tokens and its optimizer's memory, a rollout's products
over each token once, with as many rows at a time as sequences run, a publication's bytes and its probe.

Legend: ``rows`` of a product are tokens; a layer's products are queries, keys and values at once, output, gate and up
at once, and down.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_FLOAT_BYTES = 4
_OPTIMIZER_PASSES = 7
"""AdamW reads the parameter, its gradient, and two moments, and writes all except the gradient."""
_TRAINING_ROWS = 1024
"""The rate of large products is measured with this many rows."""
_COPIED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of a decoder's products and of its cache."""

    layers: int
    linear: tuple[tuple[int, int], ...]
    """(out, in) of each product of a layer."""
    head: tuple[int, int]
    kv_width: int
    """Numbers that a layer's cache holds for a token."""
    parameters: int
    """The embedding counts once, though it is also the head."""

    @classmethod
    def of(cls, config: Any) -> "Shapes":
        """Read the shapes from a model's configuration, as transformers has it."""
        hidden, inner = config.hidden_size, config.intermediate_size
        head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
        linear = (
            (queries + 2 * keys, hidden),
            (hidden, queries),
            (2 * inner, hidden),
            (hidden, inner),
        )
        weights = config.num_hidden_layers * sum(rows * columns for rows, columns in linear)
        head = (config.vocab_size, hidden)
        return cls(config.num_hidden_layers, linear, head, 2 * keys, weights + head[0] * head[1])


class Machine:
    """The machine's rates; weights of the model's size are held, so that no product finds its weights in a cache.

    Args:
        dtype: torch's dtype of the products.
    """

    def __init__(self, shapes: Shapes, dtype: Any) -> None:
        import torch

        self._torch, self._shapes, self._dtype = torch, shapes, dtype
        self._weights = [
            [torch.randn(out, into, dtype=dtype) * 0.02 for out, into in shapes.linear] for _ in range(shapes.layers)
        ]
        self._head = torch.randn(shapes.head, dtype=dtype) * 0.02
        self.bytes_per_s = self._copy_rate()
        layers, head = self._trained_s(_TRAINING_ROWS)
        self._layers_per_row_s, self._head_per_row_s = layers / _TRAINING_ROWS, head / _TRAINING_ROWS

    def update_s(self, tokens: int, asked: int) -> float:
        """Return the seconds of one optimizer step.

        Args:
            tokens: unique ones, which go through the layers.
            asked: those of them whose next token's probability is trained.
        """
        products = tokens * self._layers_per_row_s + asked * self._head_per_row_s
        return products + _OPTIMIZER_PASSES * self._shapes.parameters * _FLOAT_BYTES / self.bytes_per_s

    def rollout_s(self, read: int, sampled: int, rows: int) -> float:
        """Return the seconds of sampling.

        Args:
            read: unique tokens that were not sampled, each of which is computed once.
            sampled: tokens, computed ``rows`` at a time; each pass reads the sequences' cache, in which what they
                share is read once.
            rows: sequences that run at the same time.
        """
        passes = sampled / rows
        cache = (read + sampled / 2) * self._shapes.layers * self._shapes.kv_width * self._dtype.itemsize
        return self.forward_s(read) + passes * (self._decode_s(rows) + cache / self.bytes_per_s)

    def forward_s(self, tokens: int) -> float:
        """Return the seconds of the layers' products over ``tokens`` tokens at once."""
        return tokens * self._layers_per_row_s / 3

    def publication_s(self, probed: int) -> float:
        """Return the seconds of a publication: weights written once and read once, the probe scored on both sides."""
        size = self._shapes.parameters * self._dtype.itemsize
        return 2 * 2 * size / self.bytes_per_s + 2 * self.forward_s(probed)

    @property
    def gflops(self) -> float:
        """Rate of the large products, forward and backward."""
        weights = self._shapes.parameters - self._shapes.head[0] * self._shapes.head[1]
        return 6 * weights / self._layers_per_row_s / 1e9

    def _decode_s(self, rows: int) -> float:
        inputs = {into: self._rows(rows, into) for _, into in (*self._shapes.linear, self._shapes.head)}

        def decode() -> None:
            for layer in self._weights:
                for weight in layer:
                    self._torch.nn.functional.linear(inputs[weight.shape[1]], weight)
            self._torch.nn.functional.linear(inputs[self._head.shape[1]], self._head)

        with self._torch.inference_mode():
            return _quickest(decode)

    def _trained_s(self, rows: int) -> tuple[float, float]:
        """Return the seconds of the products, forward and backward: of all layers, and of the head."""

        def both_ways(weight: Any) -> None:
            x, g = self._rows(rows, weight.shape[1]), self._rows(rows, weight.shape[0])
            began = time.perf_counter()
            self._torch.nn.functional.linear(x, weight)
            self._torch.matmul(g, weight)
            self._torch.matmul(g.T, x)
            spent[0] += time.perf_counter() - began

        spent = [0.0]

        def layers() -> float:
            spent[0] = 0.0
            for layer in self._weights:
                for weight in layer:
                    both_ways(weight)
            return spent[0]

        def head() -> float:
            spent[0] = 0.0
            both_ways(self._head)
            return spent[0]

        with self._torch.inference_mode():
            return min(layers() for _ in range(2)), min(head() for _ in range(3))

    def _copy_rate(self) -> float:
        source = self._torch.ones(_COPIED_BYTES // _FLOAT_BYTES)
        target = self._torch.empty_like(source)
        return 2 * _COPIED_BYTES / _quickest(lambda: target.copy_(source), tries=5)

    def _rows(self, rows: int, width: int) -> Any:
        return self._torch.randn(rows, width, dtype=self._dtype)


def _quickest(work: Callable[[], object], tries: int = 3) -> float:
    seconds = []
    for _ in range(tries + 1):  # the first is the slowest
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
