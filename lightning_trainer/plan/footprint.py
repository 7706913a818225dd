"""Memory of a trainer process and of an engine, part by part, on one of the GPUs across which they are divided.

Legend: ``P`` parameters, ``T`` trained parameters, ``W`` trainer processes with a GPU each (FSDP2: each holds 1/W).

Trainer: float32 weights 4P/W, gradients 4T/W, AdamW's moments 8T/W (Kingma & Ba 2014, arXiv 1412.6980). FSDP computes
with a copy of the weights: of all of them in one process (4P), of two layers at a time in several, which gather them
layer by layer. Matrix products in bfloat16 read another copy in one process (2P); in several, FSDP's own copy is in
bfloat16. Weights below an adapter are kept in the precision of the matrix products; in one process they have no copies
(``training.update.engines.frozen``). What the backward pass keeps of a token is counted tensor by tensor
(``kept_bytes``), as in Korthikanti et al. 2022 (arXiv 2205.05198, section 4), adapted to RMSNorm, rotary positions and
gated feed-forward layers, and without a matrix of scores: the tree engine and flash attention recompute it.
"""

from dataclasses import dataclass, fields

from lightning_trainer.plan.hardware import GIB
from lightning_trainer.plan.shape import Shape

TRAINED_SHARE = 0.5
"""Share of a micro-batch's tokens whose logits are computed. The rest are prompts and tool output."""
CONTEXT_BYTES = 1.5 * GIB
"""CUDA's context, NCCL's buffers, and what the allocator cannot use."""
_GRAPHS_BYTES = 1.0 * GIB
"""vLLM's CUDA graphs."""
_PROFILED_TOKENS = 8192
"""vLLM's largest batch of prompt tokens, for whose activations it reserves memory."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory in bytes of a trainer process at the peak of an update: the forward pass of its second micro-batch."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    """Weights that FSDP gathered, and copies in the precision of the matrix products."""
    activations: float
    logits: float
    context: float = CONTEXT_BYTES

    @property
    def total(self) -> float:
        """Return the sum, in bytes."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory in bytes of an engine on each of its GPUs."""

    weights: float
    activations: float
    cache: float
    """The key-value cache: what is left of the engine's share."""
    context: float = CONTEXT_BYTES + _GRAPHS_BYTES

    @property
    def total(self) -> float:
        """Return the sum, in bytes."""
        return sum(getattr(self, field.name) for field in fields(self))


def kept_bytes(shape: Shape, dtype: str) -> float:
    """Return the bytes that the backward pass keeps of one token in one layer, without recomputation.

    float32: input and output of two norms (16h); the inputs of attention and of the feed-forward layer, one tensor each
    for all of their linear layers; query, key and value before and after rotation; the output of attention; and four
    tensors of the feed-forward layer. bfloat16 (autocast): norms stay float32, and each linear layer keeps an input of
    its own.
    """
    h, q, k, f = shape.hidden, shape.queries, shape.keys, shape.feed_forward * shape.experts_per_token
    if dtype == "float32":
        return 24 * h + 8 * (q + 2 * k) + 4 * q + 16 * f
    return 26 * h + 4 * (q + 2 * k) + 2 * q + 8 * f


def trainer_memory(
    shape: Shape,
    *,
    tokens: int,
    processes: int = 1,
    lora_rank: int | None = None,
    checkpointing: bool = False,
    dtype: str = "bfloat16",
) -> TrainerMemory:
    """Return the memory that a process needs at the peak of an update.

    Args:
        tokens: unique tokens of a micro-batch.
        lora_rank: rank of the adapter that is trained instead of the model.
    """
    count = shape.parameters
    trained = count if lora_rank is None else shape.lora_parameters(lora_rank)
    item = 4 if dtype == "float32" else 2
    weights, gathered = 4.0 * count, 4.0 * trained
    if processes > 1:
        # Two layers at a time are gathered, and the embeddings and the output.
        gathered = float(item * (2 * shape.layer_parameters + shape.embedding_parameters))
        if lora_rank is not None:
            weights = float(item * count)
    elif dtype != "float32":
        gathered += 2.0 * count
        if lora_rank is not None:
            # Autocast still copies embeddings that are also the output, and a mixture's experts.
            weights -= 2 * shape.linear_parameters
            gathered -= 2 * (shape.linear_parameters + (0 if shape.tied else shape.vocabulary * shape.hidden))
    if dtype != "float32":
        gathered += 2.0 * trained / processes  # low halves of trained weights, which are served rounded
    kept = kept_bytes(shape, dtype)
    # With recomputation each layer keeps only its input, and one layer at a time has all of its activations.
    of_layers = shape.layers * 4 * shape.hidden + kept if checkpointing else shape.layers * kept
    rows = TRAINED_SHARE * tokens
    return TrainerMemory(
        weights=weights / processes,
        gradients=4 * trained / processes,
        optimizer=8 * trained / processes,
        copies=gathered,
        activations=tokens * of_layers,
        logits=rows * shape.vocabulary * 2 * item,  # and their gradient
    )


def engine_memory(
    shape: Shape, *, share: float, gpu_bytes: float, tensor_parallel: int = 1, max_num_seqs: int = 64
) -> EngineMemory:
    """Return the memory that an engine needs on each of its GPUs; its cache is negative if the share is too small.

    Args:
        share: ``gpu_memory_utilization``.
    """
    weights = 2 * shape.parameters / tensor_parallel
    width = 2 * shape.hidden + 2 * (2 * shape.feed_forward * shape.experts_per_token) / tensor_parallel
    activations = _PROFILED_TOKENS * width + 4 * max_num_seqs * shape.vocabulary
    own = EngineMemory(weights, activations, 0.0)
    return EngineMemory(weights, activations, share * gpu_bytes - own.total)


def cached_tokens(shape: Shape, engine: EngineMemory, tensor_parallel: int) -> int:
    """Return how many tokens an engine's cache holds; key heads are replicated if there are fewer than GPUs."""
    divided = min(tensor_parallel, shape.key_heads)
    return max(0, int(engine.cache * divided / shape.cache_bytes_per_token))
