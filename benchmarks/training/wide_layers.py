"""Models with random weights and four layers that are as wide as those of well-known models."""

from pathlib import Path

_SHAPES = {
    "1B": ("Llama 3.2 1B", (2048, 8192, 32, 8)),
    "4B": ("Qwen3 4B", (2560, 9728, 32, 8)),
    "8B": ("Llama 3.1 8B", (4096, 14336, 32, 8)),
}
"""By size: whose layers, and their hidden size, intermediate size, query heads and key heads."""
SIZES = tuple(_SHAPES)
LAYERS = 4
_HEAD = {"1B": 64, "4B": 128, "8B": 128}
_VOCABULARY = 32_000


def whose(size: str) -> str:
    return _SHAPES[size][0]


def write_model(size: str, folder: Path) -> None:
    """Write a model of this size: config.json and safetensors in bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, intermediate, heads, key_heads = _SHAPES[size][1]
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=_HEAD[size],
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.bfloat16()
    model.save_pretrained(folder)
