"""The sizes of a causal language model, read from its config.json, and its exact number of parameters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.errors import ModelError

_QKV_BIASES = frozenset({"qwen2", "qwen2_moe"})
"""Families whose query, key and value layers always have biases, whatever the configuration says."""
_HEAD_NORMS = frozenset({"qwen3", "qwen3_moe"})
"""Families that normalize each head of queries and keys."""
_TIED = frozenset({"smollm3"})
"""Families whose output layer has the embeddings' weights unless the configuration says otherwise."""
_KNOWN = frozenset({"llama", "mistral", "smollm3", "mixtral", *_QKV_BIASES, *_HEAD_NORMS}) - {"qwen2_moe"}
_EXPERTS = ("num_experts", "num_local_experts")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder with gated feed-forward layers; a mixture of experts has ``experts`` of them per layer."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    head_norms: bool = False
    experts: int = 1
    experts_per_token: int = 1
    context: int = 2048
    """Longest sequence that the model was made for, in tokens."""

    @property
    def queries(self) -> int:
        """Return the width of all heads' queries together."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Return the width of all heads' keys together, which is also that of their values."""
        return self.key_heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Return the number of parameters of a layer, including all of its experts."""
        return self._layer(self.experts)

    @property
    def embedding_parameters(self) -> int:
        """Return the number of parameters of the embeddings, and of the output if it is not tied to them."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def linear_parameters(self) -> int:
        """Return the number of parameters that only linear layers read: not a mixture's experts, nor a tied output."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        forward = 3 * self.hidden * self.feed_forward if self.experts == 1 else 0
        return self.layers * (attention + forward) + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the whole model."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def computed_parameters(self) -> int:
        """Return how many parameters a token is multiplied with: the output's, and the layers' with its own experts."""
        return self.vocabulary * self.hidden + self.layers * self._layer(self.experts_per_token)

    def lora_parameters(self, rank: int) -> int:
        """Return the number of parameters of an adapter on all linear layers except output, experts, and routers."""
        attention = [(self.hidden, self.queries), (self.hidden, self.keys), (self.hidden, self.keys)]
        attention.append((self.queries, self.hidden))
        forward = [(self.hidden, self.feed_forward)] * 2 + [(self.feed_forward, self.hidden)]
        layers = attention + (forward if self.experts == 1 else [])
        return self.layers * rank * sum(into + out for into, out in layers)

    @property
    def cache_bytes_per_token(self) -> int:
        """Return the bytes per token in a key-value cache of 16 bits."""
        return 2 * 2 * self.layers * self.keys

    def _layer(self, experts: int) -> int:
        attention = 2 * self.hidden * self.queries + 2 * self.hidden * self.keys
        attention += (self.queries + 2 * self.keys) * self.qkv_bias + self.hidden * self.output_bias
        norms = 2 * self.hidden + 2 * self.head_size * self.head_norms
        forward = 3 * self.hidden * self.feed_forward + (2 * self.feed_forward + self.hidden) * self.feed_forward_bias
        router = self.hidden * self.experts if self.experts > 1 else 0
        return attention + norms + experts * forward + router


def read_shape(path: Path) -> Shape:
    """Read a config.json.

    Raises:
        ModelError: the file is not a config.json, or the parameters of its family cannot be counted.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as a model's config.json: {error}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path} is not a model's config.json: it is not a JSON object")
    return shape_of(document, str(path))


def shape_of(document: Mapping[str, Any], name: str) -> Shape:
    """Return the sizes in a configuration.

    Raises:
        ModelError: a size is missing, or the family is not known.
    """
    family = document.get("model_type")
    if not isinstance(family, str) or family not in _KNOWN:
        raise ModelError(
            f"{name} is of the family {family!r}, whose parameters this cannot count; it knows "
            f"{', '.join(sorted(_KNOWN))}"
        )
    try:
        experts = next((int(document[key]) for key in _EXPERTS if document.get(key)), 1)
        hidden, heads = int(document["hidden_size"]), int(document["num_attention_heads"])
        width = document["moe_intermediate_size"] if family == "qwen3_moe" else document["intermediate_size"]
        return Shape(
            layers=int(document["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            key_heads=int(document.get("num_key_value_heads") or heads),
            head_size=int(document.get("head_dim") or hidden // heads),
            feed_forward=int(width),
            vocabulary=int(document["vocab_size"]),
            tied=bool(document.get("tie_word_embeddings", family in _TIED)),
            qkv_bias=family in _QKV_BIASES or bool(document.get("attention_bias")),
            output_bias=bool(document.get("attention_bias")) and family != "qwen2",
            feed_forward_bias=bool(document.get("mlp_bias")),
            head_norms=family in _HEAD_NORMS,
            experts=experts,
            experts_per_token=int(document.get("num_experts_per_tok") or 1) if experts > 1 else 1,
            context=int(document.get("max_position_embeddings") or 2048),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{name} is not a whole config.json: {type(error).__name__} {error}") from error
